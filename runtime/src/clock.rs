//! The one clock of the runtime: cheap (the CPU's time stamp counter where it is stable), monotonic, in nanoseconds.

/// A clock. Clones read the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    origin: u64,
}

impl Clock {
    /// A clock that reads about 0 now.
    pub fn new() -> Self {
        let source = quanta::Clock::new();
        let origin = source.raw();
        Clock { source, origin }
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    pub fn now(&self) -> u64 {
        self.source.delta_as_nanos(self.origin, self.source.raw())
    }
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
        std::thread::sleep(std::time::Duration::from_millis(20));
        let passed = clock.now() - before;
        assert!((19_000_000..2_000_000_000).contains(&passed), "{passed} ns");
    }
}
