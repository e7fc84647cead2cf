//! Techniques of an algorithm as switches with names, which papers compare and the command line sets. Knows no
//! algorithm.

/// A set of switches, whose names are those on the command line. [`crate::techniques!`] writes the type from a list of
/// them.
pub trait Switches {
    /// Sets the switch with that name; yields false if there is none.
    ///
    /// ```
    /// # use farwood_index::{Switches, sherman::Techniques};
    /// let mut techniques = Techniques::ALL;
    /// assert!(techniques.set("fused", false) && !techniques.fused);
    /// assert!(!techniques.set("warp", true));
    /// ```
    fn set(&mut self, name: &str, on: bool) -> bool;

    /// Lists the switches by name, always in the same order.
    ///
    /// ```
    /// # use farwood_index::{Switches, sherman::Techniques};
    /// assert!(Techniques::ALL.list().contains(&("fused", true)));
    /// assert!(Techniques::NONE.list().iter().all(|(_, on)| !on));
    /// ```
    fn list(&self) -> Vec<(&'static str, bool)>;
}

/// Writes a struct of switches and its [`Switches`]: each field with its value in `ALL`, which is the default.
///
/// ```
/// farwood_index::techniques! {
///     /// Parts that this index can do without.
///     pub struct Techniques {
///         /// Two verbs in one chain.
///         pub fused: bool = true,
///         /// Of another paper.
///         pub delegation: bool = false,
///     }
/// }
/// use farwood_index::Switches as _;
/// let mut techniques = Techniques::default();
/// assert!(techniques.set("delegation", true) && !techniques.set("warp", true));
/// assert_eq!(techniques.list(), [("fused", true), ("delegation", true)]);
/// ```
#[macro_export]
macro_rules! techniques {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: bool = $on:expr,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: bool,)+
        }

        impl $name {
            /// The switches as they are by default. Those that are off are other algorithms', or for research.
            pub const ALL: $name = $name { $($field: $on,)+ };

            /// All switches off.
            pub const NONE: $name = $name { $($field: false,)+ };
        }

        impl Default for $name {
            fn default() -> Self {
                $name::ALL
            }
        }

        impl $crate::shell::techniques::Switches for $name {
            fn set(&mut self, name: &str, on: bool) -> bool {
                match name {
                    $(stringify!($field) => self.$field = on,)+
                    _ => return false,
                }
                true
            }

            fn list(&self) -> Vec<(&'static str, bool)> {
                vec![$((stringify!($field), self.$field),)+]
            }
        }
    };
}
