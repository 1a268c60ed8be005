//! Runs jobs side by side, as many as cargo's `-j` has room for.

use crate::Failure;
use std::{
    env,
    sync::mpsc::{self, Sender},
    thread,
};

enum Event<T> {
    Token(std::io::Result<jobserver::Acquired>),
    Done { index: usize, result: Result<T, Failure>, token: Option<jobserver::Acquired> },
}

/// Runs `job` on each item and returns the results in the items' order, or the first failure.
///
/// A build script owns one token of cargo's jobserver; each further job runs on a token of its own, which is
/// given back as soon as no job wants it.
pub(crate) fn run<I: Sync, T: Send + 'static>(
    items: &[I],
    job: impl Fn(&I) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let (events, incoming) = mpsc::channel();
    let for_tokens = events.clone();
    let helper = client()
        .and_then(|client| client.into_helper_thread(move |token| drop(for_tokens.send(Event::Token(token)))))
        .map_err(|e| format!("cargo's jobserver: {e}"))?;
    for _ in 1..items.len() {
        helper.request_token();
    }

    let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let mut failure = None;
    thread::scope(|scope| {
        let start = |index: usize, token: Option<jobserver::Acquired>, events: Sender<Event<T>>| {
            let (job, item) = (&job, &items[index]);
            scope.spawn(move || {
                let result = job(item);
                drop(events.send(Event::Done { index, result, token }));
            });
        };
        let mut waiting = 0..items.len();
        let mut running = 0;
        if let Some(index) = waiting.next() {
            start(index, None, events.clone());
            running += 1;
        }
        while running > 0 {
            let token = match incoming.recv().expect("the pool keeps a sender") {
                Event::Token(token) => token.ok(),
                Event::Done { index, result, token } => {
                    running -= 1;
                    match result {
                        Ok(value) => results[index] = Some(value),
                        Err(e) => {
                            failure.get_or_insert(e);
                            waiting = 0..0;
                        }
                    }
                    // The token of a finished job, the implicit one (`None`) too, serves the next.
                    if let Some(next) = waiting.next() {
                        start(next, token, events.clone());
                        running += 1;
                    }
                    continue;
                }
            };
            if let (Some(token), Some(next)) = (token, waiting.clone().next()) {
                waiting.next();
                start(next, Some(token), events.clone());
                running += 1;
            }
        }
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(results.into_iter().map(|r| r.expect("every job reported")).collect()),
    }
}

fn client() -> std::io::Result<jobserver::Client> {
    // SAFETY: the descriptors that MAKEFLAGS names are cargo's; a build script inherits them, and nothing here
    // closes a descriptor that it did not open.
    if let Some(client) = unsafe { jobserver::Client::from_env() } {
        return Ok(client);
    }
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    jobserver::Client::new(jobs.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..20).collect();
        let squares = run(&items, |&i| {
            thread::sleep(std::time::Duration::from_millis(20 - i));
            Ok(i * i)
        });
        assert_eq!(squares.unwrap(), items.iter().map(|i| i * i).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_failure_is_reported_and_nothing_to_do_is_fine() {
        let failed = run(&[1, 2, 3], |&i| if i == 1 { Err("one".into()) } else { Ok(i) });
        assert_eq!(failed.unwrap_err(), "one".into());
        assert_eq!(run(&[0; 0], |&i: &i32| Ok(i)).unwrap(), [0; 0]);
    }
}
