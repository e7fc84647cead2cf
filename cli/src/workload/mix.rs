//! A mix of operations, from which 32 random bits and a few compares choose the next one.

/// Next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read of a key by the distribution.
    Get,
    /// Update of a key by the distribution.
    Update,
    /// Read of a key by the distribution, then its update.
    ReadModifyWrite,
    /// Put of a key by the distribution.
    PutOld,
    /// Put of a new key.
    PutNew,
    /// Insert of a new key.
    Insert,
    /// Scan from a key by the distribution.
    Scan,
    /// Insert of a key by the distribution, or of as many others, which may be there.
    InsertAny,
    /// Remove of a key by the distribution, or of as many others, which may be absent.
    RemoveAny,
}

const STEPS_MAX: usize = 3;

/// Steps with their shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpMix {
    /// The upper bound of each step's part of the range of 32-bit numbers; the last one is open.
    bounds: [(u64, Step); STEPS_MAX],
    steps: usize,
}

impl OpMix {
    /// Makes a mix of at most three steps whose shares sum up to 1.
    pub(crate) fn new(shares: &[(f64, Step)]) -> Self {
        assert!(shares.len() <= STEPS_MAX, "a mix has at most {STEPS_MAX} steps");
        let mut bounds = [(u64::MAX, Step::Get); STEPS_MAX];
        let mut sum = 0.0;
        for (bound, &(share, step)) in bounds.iter_mut().zip(shares) {
            sum += share;
            *bound = ((sum * (1u64 << 32) as f64) as u64, step);
        }
        if let Some(last) = shares.len().checked_sub(1) {
            assert!((sum - 1.0).abs() < 1e-9, "the shares of a mix sum up to 1, not {sum}");
            // Rounding must not leave numbers beyond the last step.
            bounds[last].0 = u64::MAX;
        }
        OpMix { bounds, steps: shares.len() }
    }

    /// Returns the step for that random number.
    #[inline]
    pub(crate) fn step(&self, random: u32) -> Step {
        let random = u64::from(random);
        match &self.bounds {
            [(bound, step), ..] if random < *bound => *step,
            [_, (bound, step), _] if random < *bound => *step,
            [_, _, (_, step)] => *step,
        }
    }

    /// Tells whether a step of that kind is part of the mix.
    pub(crate) fn has(&self, is: impl Fn(Step) -> bool) -> bool {
        self.bounds[..self.steps].iter().any(|&(_, step)| is(step))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngCore, SeedableRng};

    use super::*;
    use crate::workload::Workload;

    fn share(workload: Workload, step: Step) -> f64 {
        let mut rng = SmallRng::seed_from_u64(7);
        let draws = 200_000;
        let mix = workload.mix();
        (0..draws).filter(|_| mix.step(rng.next_u32()) == step).count() as f64 / f64::from(draws)
    }

    #[test]
    fn shares_are_as_the_workload_says() {
        let expected = [
            (Workload::YcsbA, Step::Update, 0.5),
            (Workload::YcsbB, Step::Get, 0.95),
            (Workload::YcsbC, Step::Get, 1.0),
            (Workload::YcsbD, Step::Insert, 0.05),
            (Workload::YcsbE, Step::Scan, 0.95),
            (Workload::YcsbF, Step::ReadModifyWrite, 0.5),
            (Workload::UpdateOnly, Step::Update, 1.0),
            (Workload::WriteOnly, Step::PutOld, 2.0 / 3.0),
            (Workload::WriteOnly, Step::PutNew, 1.0 / 3.0),
            (Workload::WriteIntensive, Step::Get, 0.5),
            (Workload::ReadIntensive, Step::PutOld, 0.1 / 3.0),
            (Workload::RangeOnly, Step::Scan, 1.0),
            (Workload::RangeWrite, Step::Scan, 0.5),
            (Workload::Churn, Step::InsertAny, 0.5),
            (Workload::Churn, Step::RemoveAny, 0.5),
        ];
        for (workload, step, share_expected) in expected {
            let got = share(workload, step);
            assert!((got - share_expected).abs() < 0.005, "{workload:?} {step:?}: {got}");
        }
    }

    #[test]
    fn the_last_number_belongs_to_the_last_step() {
        assert_eq!(Workload::YcsbA.mix().step(u32::MAX), Step::Update);
        assert_eq!(Workload::YcsbC.mix().step(u32::MAX), Step::Get);
        assert_eq!(Workload::YcsbA.mix().step(0), Step::Get);
        assert!(!Workload::Raw.mix().has(|_| true));
    }
}
