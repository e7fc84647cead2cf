//! Messages between the shards of a compute node: small, `Copy`, meaningless to the runtime.

/// A shard of a compute node, by its position among the node's shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

/// Where a message goes inside a shard: the same number names the same actor on every shard of the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Port(pub u16);

/// The payload of a message. What the words mean is between the actors that share a [`Port`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Message(pub [u64; 3]);

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// The receiving actor.
    pub port: Port,
    /// What it is told.
    pub message: Message,
}
