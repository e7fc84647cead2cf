//! Sweeps: finding memory of an index that was lost, while its clients work. What was lost is in no node that the index
//! reaches, in no list of free or retired nodes, and with no operation that is under way. Nodes pass from one to the
//! other meanwhile, so none of the three can be looked at alone:
//!
//! ```text
//!   all processes begin to note             what leaves a list from now on: allocated, or given to a server
//!   epochs: operations of before end        what they had allocated is in the tree, or in a list
//!   servers are asked, the index is walked  a node that is in the tree all the while is reached
//!   epochs: operations of the walk end      what they have taken out of the tree is in a list
//!   all processes tell                      what is in their lists, and what they have noted
//!   servers are asked again                 what they had before, and is neither here nor there: it was lost
//!   a flush, and epochs                     no cache and no operation has an address of what was lost
//! ```
//!
//! So a piece is taken for lost only if it was in no list at any time from the beginning on, else it is told; at no
//! time with the servers, which are asked when all note, and give to lists that are told; and not in the tree for the
//! whole walk. Whatever changes between these passes through a list. A process that ends tells before that. One that
//! dies has told nothing: the sweep is void then, and begins anew.
//!
//! - `lists`: what a process notes and tells; `home`: which process has done what.
//!
//! It does not know how an index is walked.

mod home;
mod lists;

use serde::{Deserialize, Serialize};

pub(crate) use self::home::{Ended, SweepHome};
pub use self::lists::Lists;
pub(crate) use self::lists::{List, Noted};

/// A step of a sweep that all processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// They note what passes through their lists.
    Notes,
    /// They tell what is in their lists, and what they have noted.
    Lists,
}

/// The step that a sweep wants of a process: that it is done, or goes on to be.
pub(crate) type Wanted = Step;
