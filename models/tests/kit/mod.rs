//! Explores models to a bound, and checks that a control fails.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use farwood_models::sync::{Weakening, weakened};

/// Times that a thread loses its turn where it could go on. Mistakes of order need two at most in practice, and each
/// further one multiplies the time; `LOOM_MAX_PREEMPTIONS` sets another number.
const PREEMPTIONS: usize = 3;

/// Runs the model in every order with that many preemptions.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_to(PREEMPTIONS, model);
}

/// Runs the model in every order with so many preemptions.
pub(crate) fn explore_to(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Checks that the model fails in some order once it is weakened, with a message that contains `part`: it would see
/// that mistake.
pub(crate) fn must_fail(by: Weakening, part: &str, model: impl Fn() + Send + Sync + 'static) {
    must_fail_to(PREEMPTIONS, by, part, model);
}

/// Checks that the model fails in some order with so many preemptions once it is weakened, as [`must_fail`] does.
pub(crate) fn must_fail_to(
    preemptions: usize,
    by: Weakening,
    part: &str,
    model: impl Fn() + Send + Sync + 'static,
) {
    let found = weakened(by, || failure_to(preemptions, model));
    assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{by:?} does this harm: {found:?}");
}

/// Returns the message with which the model fails in some order, if it does.
pub(crate) fn failure(model: impl Fn() + Send + Sync + 'static) -> Option<String> {
    failure_to(PREEMPTIONS, model)
}

fn failure_to(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> Option<String> {
    let cause = catch_unwind(AssertUnwindSafe(|| explore_to(preemptions, model))).err()?;
    Some(cause.downcast_ref::<String>().cloned().unwrap_or_else(|| "no message".to_owned()))
}
