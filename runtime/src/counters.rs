//! Arithmetic of counters, whose fields are listed once for it. Knows nothing of what they count.

/// Lets a struct of counters be merged over shards (`+=` of another shard's) and be subtracted (`-=` of an earlier
/// snapshot of the same shards). Its fields are listed by what becomes of them:
///
/// - `sum`: counters of a shard, or structs of them;
/// - `each`: arrays of such;
/// - `node`: counters of the whole compute node, which all of its shards report: merged, they are the largest;
/// - `held`: what a shard holds now, which nothing is subtracted from;
/// - `node_held`: what the whole compute node holds now.
///
/// ```
/// #[derive(Default)]
/// struct Stats { lookups: u64, evicted: u64, bytes: u64 }
/// farwood_runtime::counters!(Stats { sum: lookups; node: evicted; node_held: bytes; });
///
/// let mut now = Stats { lookups: 5, evicted: 3, bytes: 64 };
/// now += &Stats { lookups: 2, evicted: 4, bytes: 64 };
/// now -= &Stats { lookups: 1, evicted: 1, bytes: 32 };
/// assert_eq!((now.lookups, now.evicted, now.bytes), (6, 3, 64));
/// ```
#[macro_export]
macro_rules! counters {
    ($stats:ident {
        $(sum: $($sum:ident)+;)?
        $(each: $($each:ident)+;)?
        $(node: $($node:ident)+;)?
        $(held: $($held:ident)+;)?
        $(node_held: $($node_held:ident)+;)?
    }) => {
        /// Adds another shard's counters. Those of the whole compute node are taken once.
        impl ::std::ops::AddAssign<&$stats> for $stats {
            fn add_assign(&mut self, other: &$stats) {
                // A field that is not listed is an error here.
                let $stats {
                    $($($sum: _,)+)? $($($each: _,)+)? $($($node: _,)+)? $($($held: _,)+)? $($($node_held: _,)+)?
                } = other;
                $($(self.$sum += &other.$sum;)+)?
                $($(self.$each.iter_mut().zip(&other.$each).for_each(|(own, other)| *own += other);)+)?
                $($(self.$node = self.$node.max(other.$node);)+)?
                $($(self.$held += &other.$held;)+)?
                $($(self.$node_held = self.$node_held.max(other.$node_held);)+)?
            }
        }

        /// Subtracts an earlier snapshot of the same shards. What is held now stays.
        impl ::std::ops::SubAssign<&$stats> for $stats {
            fn sub_assign(&mut self, earlier: &$stats) {
                $($(self.$sum -= &earlier.$sum;)+)?
                $($(self.$each.iter_mut().zip(&earlier.$each).for_each(|(own, earlier)| *own -= earlier);)+)?
                $($(self.$node -= &earlier.$node;)+)?
            }
        }
    };
}
