//! The one clock of the runtime: cheap (the CPU's time stamp counter where it is stable), monotonic, in nanoseconds.

#[cfg(test)]
use std::sync::Arc;
use std::time::Duration;

/// A clock. Clones read the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    origin: u64,
}

impl Clock {
    /// Makes a clock that reads about 0 now.
    ///
    /// ```
    /// # use farwood_runtime::clock::Clock;
    /// let clock = Clock::new();
    /// assert!(clock.now() < 60_000_000_000, "it has just begun");
    /// ```
    pub fn new() -> Self {
        Self::starting(quanta::Clock::new())
    }

    /// Makes a clock that stands still, and what moves it.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, Arc<quanta::Mock>) {
        let (source, time) = quanta::Clock::mock();
        (Self::starting(source), time)
    }

    fn starting(source: quanta::Clock) -> Self {
        let origin = source.raw();
        Clock { source, origin }
    }

    /// Yields the nanoseconds since the clock was made.
    ///
    /// ```
    /// # use farwood_runtime::clock::Clock;
    /// let clock = Clock::new();
    /// let (before, after) = (clock.now(), clock.clone().now());
    /// assert!(before <= after);
    /// ```
    #[inline]
    pub fn now(&self) -> u64 {
        self.source.delta_as_nanos(self.origin, self.source.raw())
    }
}

/// Counts the nanoseconds of `span`, the unit of all times below configurations. More than 584 years are `u64::MAX`,
/// which never comes.
///
/// ```
/// # use farwood_runtime::clock::nanoseconds;
/// # use std::time::Duration;
/// assert_eq!(nanoseconds(Duration::from_micros(3)), 3_000);
/// assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
/// ```
pub fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advances_at_the_pace_of_time() {
        let clock = Clock::new();
        let before = clock.now();
        #[expect(clippy::disallowed_methods, reason = "tests the clock against the system's")]
        std::thread::sleep(Duration::from_millis(20));
        let passed = clock.now() - before;
        assert!((19_000_000..2_000_000_000).contains(&passed), "{passed} ns");
    }

    #[test]
    fn spans_that_are_too_long_never_end() {
        assert_eq!(nanoseconds(Duration::from_micros(3)), 3_000);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
