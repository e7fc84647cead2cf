//! Distributions over n items: uniform, or zipfian of any skew. They yield ranks; rank 0 is the most popular one. Which
//! keys these are is the key set's: neighbouring ranks lie anywhere in key order, but those of dense keys side by side.
//!
//! The zipfian sampler is exact for every theta and costs no power function in the usual case: the first ranks are
//! outcomes of an alias table of their own; the others are grouped in buckets whose width grows with the rank, so that
//! popularity changes by a few percent inside a bucket. A draw picks an outcome by its total weight, then a
//! rank uniformly in its bucket, and thins by rejection what the bucket's end is less popular than its start.
//! (`rand_distr::Zipf` takes several powers a draw, YCSB's own generator holds for theta < 1 only.)

use rand::{Rng, RngCore};
use rand_distr::Distribution as _;
use rand_distr::weighted::WeightedAliasIndex;

/// The distribution as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    /// All keys equally often.
    Uniform,
    /// Zipf's law with that exponent.
    Zipf(f64),
    /// The newest keys, by Zipf's law with the exponent [`LATEST_THETA`].
    Latest,
}

/// The skew of [`Distribution::Latest`] and of workloads whose distribution is not given.
pub(crate) const LATEST_THETA: f64 = 0.99;
const THETA_MAX: f64 = 100.0;

impl Distribution {
    /// Reads `uniform`, `zipf:THETA` or `latest`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(Distribution::Uniform),
            None if text == "latest" => Ok(Distribution::Latest),
            Some(("zipf", theta)) => match theta.parse::<f64>() {
                Ok(theta) if (0.0..=THETA_MAX).contains(&theta) => Ok(Distribution::Zipf(theta)),
                _ => Err(format!("the skew '{theta}' of zipf is not a number from 0 to {THETA_MAX}")),
            },
            _ => Err(format!("there is no distribution '{text}': choose uniform, zipf:THETA or latest")),
        }
    }

    /// Returns its name on the command line.
    pub(crate) fn name(self) -> String {
        match self {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Zipf(theta) => format!("zipf:{theta}"),
            Distribution::Latest => "latest".to_owned(),
        }
    }

    /// Makes a sampler of ranks below `n`.
    pub(crate) fn ranks(self, n: u64) -> Ranks {
        assert!(n > 0, "a distribution is over one item at least");
        match self {
            Distribution::Uniform => Ranks::Uniform(n),
            Distribution::Zipf(theta) => Ranks::Zipf(Box::new(Zipf::new(n, theta))),
            Distribution::Latest => Ranks::Zipf(Box::new(Zipf::new(n, LATEST_THETA))),
        }
    }
}

/// A sampler of ranks. Immutable, so that all clients share one.
pub(crate) enum Ranks {
    /// All ranks equally often.
    Uniform(u64),
    /// By Zipf's law.
    Zipf(Box<Zipf>),
}

impl Ranks {
    /// Draws the next rank.
    #[inline]
    pub(crate) fn sample(&self, rng: &mut impl RngCore) -> u64 {
        match self {
            Ranks::Uniform(n) => below(rng, *n),
            Ranks::Zipf(zipf) => zipf.sample(rng),
        }
    }
}

/// Draws a number below `n`; the bias of at most n / 2^64 is far below what any run can see.
#[inline]
pub(crate) fn below(rng: &mut impl RngCore, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

/// Ranks that are outcomes of their own.
const HEAD: u64 = 1024;
/// Part of a bucket's first rank that the bucket is wide, as a divisor.
const WIDTH_DIVISOR: u64 = 32;

/// A zipfian sampler.
pub(crate) struct Zipf {
    outcomes: WeightedAliasIndex<f64>,
    buckets: Box<[Bucket]>,
    head: u64,
    theta: f64,
}

/// Ranks `first..first + width`, counted from 1 as Zipf's law does.
struct Bucket {
    first: u64,
    width: u64,
    /// The popularity of the last rank, relative to the first.
    last_share: f64,
}

impl Zipf {
    fn new(n: u64, theta: f64) -> Self {
        let popularity = |rank: u64| (rank as f64).powf(-theta);
        let head = n.min(HEAD);
        let mut weights: Vec<f64> = (1..=head).map(popularity).collect();
        let mut buckets = Vec::new();
        let mut first = head + 1;
        while first <= n {
            let width = (first / WIDTH_DIVISOR).min(n - first + 1);
            let last = first + width - 1;
            weights.push(weight_of(first, last, theta));
            buckets.push(Bucket { first, width, last_share: (last as f64 / first as f64).powf(-theta) });
            first += width;
        }
        let outcomes = WeightedAliasIndex::new(weights).expect("weights are positive, finite and few");
        Zipf { outcomes, buckets: buckets.into_boxed_slice(), head, theta }
    }

    #[inline]
    fn sample(&self, rng: &mut impl RngCore) -> u64 {
        let outcome = self.outcomes.sample(rng) as u64;
        if outcome < self.head {
            return outcome;
        }
        let bucket = &self.buckets[(outcome - self.head) as usize];
        loop {
            let rank = bucket.first + below(rng, bucket.width);
            let chance: f64 = rng.random();
            let kept =
                chance < bucket.last_share || chance < (rank as f64 / bucket.first as f64).powf(-self.theta);
            if kept {
                return rank - 1;
            }
        }
    }
}

/// Sums r^-theta for r from `first` to `last` (Euler-Maclaurin: beyond the head the terms left out are below 1e-12 of
/// it).
fn weight_of(first: u64, last: u64, theta: f64) -> f64 {
    let (a, b) = (first as f64, last as f64);
    // The integral of x^-theta over a..b is a^(1-theta) * (exp(s (1-theta)) - 1) / (1-theta), where s = ln(b/a); near
    // theta = 1 that is 0/0 in the limit s, and expm1 keeps its digits.
    let (s, exponent) = ((b / a).ln(), 1.0 - theta);
    let ratio = if (s * exponent).abs() < 1e-12 { s } else { (s * exponent).exp_m1() / exponent };
    let integral = a.powf(exponent) * ratio;
    let f = |x: f64| x.powf(-theta);
    let slope = |x: f64| -theta * x.powf(-theta - 1.0);
    // For extreme skews the tail's weight underflows; the alias table wants no negative zero or noise below it.
    (integral + (f(a) + f(b)) / 2.0 + (slope(b) - slope(a)) / 12.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn parses_and_names() {
        for text in ["uniform", "latest", "zipf:0.99", "zipf:1", "zipf:1.2", "zipf:0"] {
            assert_eq!(Distribution::parse(text).unwrap().name(), text);
        }
        for text in ["", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:NaN", "zipf:inf", "uniform:1", "normal"]
        {
            assert!(Distribution::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bucket_weights_are_sums() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.0 + 1e-14, 1.5, 3.0] {
            for (first, last) in [(1025, 1025), (1025, 1056), (9_999_000, 10_000_000)] {
                let sum: f64 = (first..=last).map(|r| (r as f64).powf(-theta)).sum();
                let weight = weight_of(first, last, theta);
                assert!((weight / sum - 1.0).abs() < 1e-9, "{theta} {first} {last}: {weight} {sum}");
            }
        }
    }

    /// Compares frequencies over ranks grouped by powers of two with the law: a chi-square test with a generous bound.
    #[test]
    fn frequencies_follow_zipfs_law() {
        let (n, draws) = (300_000u64, 2_000_000u32);
        for theta in [0.0, 0.5, 0.9, 0.99, 1.0, 1.2, 2.0] {
            let ranks = Distribution::Zipf(theta).ranks(n);
            let mut rng = SmallRng::seed_from_u64(11);
            let group = |rank: u64| (rank + 1).ilog2() as usize;
            let mut seen = [0f64; 20];
            for _ in 0..draws {
                let rank = ranks.sample(&mut rng);
                assert!(rank < n);
                seen[group(rank)] += 1.0;
            }
            let mut law = [0f64; 20];
            for rank in 0..n {
                law[group(rank)] += ((rank + 1) as f64).powf(-theta);
            }
            let total: f64 = law.iter().sum();
            let chi_square: f64 = law
                .iter()
                .zip(seen)
                .map(|(share, seen)| (share / total * f64::from(draws), seen))
                .filter(|(expected, _)| *expected > 5.0)
                .map(|(expected, seen)| (seen - expected).powi(2) / expected)
                .sum();
            // 19 degrees of freedom: 43.8 is exceeded once in a thousand.
            assert!(chi_square < 60.0, "theta {theta}: {chi_square}");
        }
    }

    #[test]
    fn ranks_inside_a_bucket_follow_the_law() {
        // One wide bucket, where a uniform choice would be visibly wrong.
        let ranks = Distribution::Zipf(2.0).ranks(100_000);
        let mut rng = SmallRng::seed_from_u64(5);
        let (mut low, mut high) = (0f64, 0f64);
        let first = 1024 + 32; // ranks of the second bucket (0-based): 1056..1089
        for _ in 0..20_000_000 {
            match ranks.sample(&mut rng) {
                rank if (first..first + 11).contains(&rank) => low += 1.0,
                rank if (first + 22..first + 33).contains(&rank) => high += 1.0,
                _ => {}
            }
        }
        let law = |range: std::ops::Range<u64>| range.map(|r| ((r + 1) as f64).powi(-2)).sum::<f64>();
        let expected = law(first..first + 11) / law(first + 22..first + 33);
        assert!((low / high / expected - 1.0).abs() < 0.05, "{} {expected}", low / high);
    }

    #[test]
    fn small_and_extreme_populations_work() {
        let mut rng = SmallRng::seed_from_u64(3);
        for n in [1, 2, 1023, 1024, 1025, 1_000_000_000] {
            for theta in [0.0, 0.99, 1.0, 10.0, 100.0] {
                let ranks = Distribution::Zipf(theta).ranks(n);
                assert!((0..1000).all(|_| ranks.sample(&mut rng) < n));
            }
            let uniform = Distribution::Uniform.ranks(n);
            assert!((0..1000).all(|_| uniform.sample(&mut rng) < n));
        }
    }
}
