//! Keys as the bulk load of a benchmark has them.

/// Makes keys by a bijective hash of 0, 1, .. as big-endian bytes, all in the lowest `1 / 2^shift` of the key
/// space, ascending.
pub(crate) fn integer_keys(count: u64, shift: u32) -> Vec<[u8; 8]> {
    let mix = |number: u64| {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    let mut keys: Vec<u64> = (1..=count).map(|number| mix(number) >> shift).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(u64::to_be_bytes).collect()
}
