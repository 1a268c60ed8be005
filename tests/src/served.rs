//! An engine driven step by step, and what each request received.

use engine::{Engine, Event, Finish, Request, RequestId, model::EngineBackend, request::End};
use kernels_core::Activation;
use std::collections::BTreeMap;

/// What a request received so far.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its last event's end.
    pub end: Option<End>,
}

impl Received {
    /// Tokens and finish of a request that has ended.
    #[track_caller]
    pub fn ended(&self) -> (Vec<u32>, Finish) {
        let end = self.end.as_ref().expect("the request has ended");
        (self.tokens.clone(), end.finish)
    }
}

/// All requests of an engine.
#[derive(Clone, Debug, Default)]
pub struct Served(BTreeMap<RequestId, Received>);

impl Served {
    /// Submits a request.
    pub fn submit<B: EngineBackend, A: Activation>(
        &mut self,
        engine: &mut Engine<B, A>,
        request: &Request,
    ) -> RequestId {
        let id = engine.submit(request.clone()).expect("the request is sane");
        assert!(self.0.insert(id, Received::default()).is_none(), "{id} is used twice");
        id
    }

    /// One step. Nobody gets anything after an end, and at most one event.
    pub fn step<B: EngineBackend, A: Activation>(&mut self, engine: &mut Engine<B, A>) -> Vec<Event> {
        let events = engine.step().expect("the engine runs");
        for event in &events {
            let received = self.0.get_mut(&event.request).expect("events name submitted requests");
            assert!(received.end.is_none(), "{} got something after its end", event.request);
            assert!(event.end.is_some() || !event.tokens.is_empty(), "an event about nothing");
            received.tokens.extend(&event.tokens);
            received.end.clone_from(&event.end);
        }
        events
    }

    /// Steps until nothing is left to do.
    pub fn drain<B: EngineBackend, A: Activation>(&mut self, engine: &mut Engine<B, A>) {
        while !engine.is_idle() {
            self.step(engine);
        }
    }

    /// What a request received.
    pub fn of(&self, id: RequestId) -> &Received {
        &self.0[&id]
    }

    /// Tokens and finish of ended requests.
    #[track_caller]
    pub fn ended(&self, ids: &[RequestId]) -> Vec<(Vec<u32>, Finish)> {
        ids.iter().map(|id| self.of(*id).ended()).collect()
    }
}
