//! What both backends must do alike: literal cases on each, random ones compared byte by byte.
//!
//! Without a GPU the CUDA cases show as ignored, with the reason.

mod chain;
#[cfg(feature = "cuda")]
mod chains;
#[cfg(feature = "cuda")]
mod equal;
#[cfg(feature = "cuda")]
mod launches;
mod literal;
mod oracle;
mod round;
#[cfg(feature = "cuda")]
mod samples;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // what makes the random cases
mod world;

use kernels_testkit::{both, gpu, runner::Suite};

fn main() {
    let mut suite = Suite::new();
    both!(suite, literal::argmax_edges);
    both!(suite, literal::an_argmax_in_every_place);
    both!(suite, literal::greedy_edges);
    both!(suite, literal::penalties_count_the_drafts_of_the_block);
    both!(suite, literal::biases_of_one_id_add_up);
    both!(suite, literal::filters_by_hand);
    both!(suite, literal::ids_beyond_the_tokenizer_are_never_chosen);
    both!(suite, literal::infinite_logits_leave_only_each_other);
    both!(suite, literal::rows_alone_are_rows_in_a_batch);
    both!(suite, literal::draws_follow_the_softmax);
    both!(suite, literal::a_round_by_hand);
    both!(suite, literal::stops_by_hand);
    both!(suite, chain::drafts_by_hand);
    both!(suite, chain::chains_by_hand);
    both!(suite, chain::chains_at_the_door);
    both!(suite, chain::chains_alone_are_chains_in_a_batch);
    both!(suite, chain::chains_follow_the_target);
    both!(suite, round::speculation_is_plain_sampling);
    both!(suite, oracle::by_hand);
    both!(suite, oracle::nothing_for_those_who_do_not_decode);
    both!(suite, oracle::draws_are_functions_of_the_position);
    both!(suite, oracle::accept_lengths_follow_the_pattern);
    gpu!(suite, "cuda::equal::inputs", |device| equal::inputs(device));
    gpu!(suite, "cuda::equal::settling", |device| equal::settling(device));
    gpu!(suite, "cuda::equal::hidden_rows", |device| equal::hidden_rows(device));
    gpu!(suite, "cuda::oracle::equals_the_cpu", |device| oracle::equals_the_cpu(device));
    gpu!(suite, "cuda::oracle::replays_equal_the_cpu", |device| oracle::replays_equal_the_cpu(device));
    gpu!(suite, "cuda::samples::argmax", |device| samples::argmax(device));
    gpu!(suite, "cuda::samples::samples", |device| samples::samples(device));
    gpu!(suite, "cuda::samples::samples_of_a_real_vocabulary", |device| {
        samples::samples_of_a_real_vocabulary(device)
    });
    gpu!(suite, "cuda::samples::long_histories", |device| samples::long_histories(device));
    gpu!(suite, "cuda::chains::drafts_and_chains", |device| chains::drafts_and_chains(device));
    gpu!(suite, "cuda::chains::chains_of_a_real_vocabulary", |device| {
        chains::chains_of_a_real_vocabulary(device)
    });
    gpu!(suite, "cuda::chains::replays_equal_eager_chains", |device| {
        chains::replays_equal_eager_chains(device)
    });
    gpu!(suite, "cuda::chains::slow_producers_are_waited_for", |device| {
        chains::slow_producers_are_waited_for(device)
    });
    gpu!(suite, "cuda::launches::rounds_equal_the_cpu", |device| launches::rounds_equal_the_cpu(device));
    gpu!(suite, "cuda::launches::replays_equal_eager_rounds", |device| {
        launches::replays_equal_eager_rounds(device)
    });
    gpu!(suite, "cuda::launches::slow_producers_are_waited_for", |device| {
        launches::slow_producers_are_waited_for(device)
    });
    gpu!(suite, "cuda::launches::offsets_are_64_bits", |device| launches::offsets_are_64_bits(device));
    gpu!(suite, "cuda::launches::what_only_a_gpu_needs_is_refused", |device| {
        launches::what_only_a_gpu_needs_is_refused(device)
    });
    suite.run()
}
