//! Pages of intents, as they are in memory: the list of an index's pages, and whose each is. Parsing and READs; who
//! needs a page, and what is in its slots, is not known here.
//!
//! ```text
//!  root line           page                                  page
//! +------+------+     +------+-------+-------+---//---+     +------+---//
//! | root | head | ──> | next | owner | shape | slots  | ──> | next |
//! +------+------+     +------+-------+-------+---//---+     +------+---//
//!                      0      8       16      64
//!          63            48 47            32 31                             0
//!         +----------------+----------------+-------------------------------+
//! owner   | compute node   | shard          | port of its lock tables       |   0: free
//!         +----------------+----------------+-------------------------------+
//! shape   | bytes of a slot                 | slots, not 0                  |
//!         +---------------------------------+-------------------------------+
//! ```
//!
//! A page is put in front of the list by a CAS of the head, and stays there until the index is dropped. A shard takes a
//! free one by a CAS of its owner. So a client that follows the list meets every page that intents were ever written
//! to.

use farwood_runtime::{Chain, Failed, Meter, Port, RemotePtr, ShardId, Verbs};

use crate::word::WORD_BYTES;

/// The line before the slots.
pub(crate) const HEADER_BYTES: u64 = 64;
const OWNER_AT: u64 = 8;
/// A longer list is none: the bytes are no pages.
const PAGES_MAX: usize = 1 << 20;

/// The lock table whose slots are in a page; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) const NONE: Owner = Owner(0);

    pub(crate) fn new(node: u16, shard: ShardId, port: Port) -> Self {
        Owner(u64::from(node) << 48 | u64::from(shard.0) << 32 | u64::from(port.0))
    }

    pub(crate) fn node(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The number and the length of a page's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) slot_bytes: u32,
    pub(crate) slots: u32,
}

impl Shape {
    pub(crate) fn page_bytes(self) -> u64 {
        HEADER_BYTES + u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Yields where the slots of the page at `page` are.
    pub(crate) fn slots_of(self, page: RemotePtr) -> impl Iterator<Item = RemotePtr> {
        (0..u64::from(self.slots)).map(move |slot| page.add(HEADER_BYTES + slot * u64::from(self.slot_bytes)))
    }

    fn bits(self) -> u64 {
        u64::from(self.slot_bytes) << 32 | u64::from(self.slots)
    }
}

/// A page of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) at: RemotePtr,
    pub(crate) owner: Owner,
    pub(crate) shape: Shape,
}

/// Parses the header of the page at `at`; with it comes the next page. `None` if it is none.
fn parse(at: RemotePtr, header: &[u8]) -> Option<(Page, RemotePtr)> {
    let word =
        |place: usize| u64::from_le_bytes(header[place..][..WORD_BYTES].try_into().expect("eight bytes"));
    let shape = Shape { slot_bytes: (word(16) >> 32) as u32, slots: word(16) as u32 };
    let is_shaped = shape.slots > 0 && shape.slot_bytes > 0 && shape.slot_bytes.is_multiple_of(64);
    let page = Page { at, owner: Owner(word(8)), shape };
    is_shaped.then_some((page, RemotePtr::from_bits(word(0))))
}

/// Writes the header of a page.
fn build(header: &mut [u8], next: RemotePtr, owner: Owner, shape: Shape) {
    header.fill(0);
    for (place, word) in [next.to_bits(), owner.0, shape.bits()].into_iter().enumerate() {
        header[place * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }
}

/// READs the whole list, one round trip for each page; `None` if it does not come to an end as lists do: then no page
/// of it counts.
pub(crate) async fn list<V: Verbs>(verbs: &V, head: RemotePtr) -> Result<Option<Vec<Page>>, Failed> {
    let mut pages = Vec::new();
    let mut next = RemotePtr::from_bits(read_word(verbs, head).await?);
    while next != RemotePtr::NULL {
        let header = verbs.read(&Meter::default(), next, HEADER_BYTES as usize).await?.into_buf();
        match parse(next, &header) {
            Some((page, behind)) if pages.len() < PAGES_MAX => {
                pages.push(page);
                next = behind;
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(pages))
}

/// Puts a page that is no client's yet, and whose slots are zero, in front of the list: two round trips, and two more
/// whenever another page was first. A page of which it is not known may be in the list already.
pub(crate) async fn put_in_list<V: Verbs>(
    verbs: &V,
    head: RemotePtr,
    page: Page,
    may_be_listed: bool,
) -> Result<(), Failed> {
    if may_be_listed
        && list(verbs, head).await?.is_some_and(|pages| pages.iter().any(|other| other.at == page.at))
    {
        return Ok(());
    }
    let mut first = read_word(verbs, head).await?;
    loop {
        let mut chain = Chain::with_buffer(page.at.server(), verbs.lease(HEADER_BYTES as usize));
        let header = &mut chain.buffer_mut().expect("it has one")[..HEADER_BYTES as usize];
        build(header, RemotePtr::from_bits(first), page.owner, page.shape);
        chain.write(page.at, 0..HEADER_BYTES as usize);
        verbs.submit(&Meter::default(), chain).await?;
        let found = cas(verbs, head, first, page.at.to_bits()).await?;
        if found == first {
            return Ok(());
        }
        first = found;
    }
}

/// Makes all slots of a page hold no intent: one round trip.
pub(crate) async fn clear<V: Verbs>(verbs: &V, page: RemotePtr, shape: Shape) -> Result<(), Failed> {
    let bytes = (shape.page_bytes() - HEADER_BYTES) as usize;
    let mut buf = verbs.lease(bytes);
    buf[..bytes].fill(0);
    let mut chain = Chain::with_buffer(page.server(), buf);
    chain.write(page.add(HEADER_BYTES), 0..bytes);
    verbs.submit(&Meter::default(), chain).await.map(drop)
}

/// Changes whose a page is, from `from`: one round trip. Yields whose it was.
pub(crate) async fn change_owner<V: Verbs>(
    verbs: &V,
    page: RemotePtr,
    from: Owner,
    to: Owner,
) -> Result<Owner, Failed> {
    Ok(Owner(cas(verbs, page.add(OWNER_AT), from.0, to.0).await?))
}

/// READs a page with its slots: one round trip.
pub(crate) async fn read_slots<V: Verbs>(verbs: &V, page: Page) -> Result<Vec<Vec<u8>>, Failed> {
    let (bytes, slot_bytes) = (page.shape.page_bytes() as usize, page.shape.slot_bytes as usize);
    let read = verbs.read(&Meter::default(), page.at, bytes).await?.into_buf();
    Ok(read[HEADER_BYTES as usize..bytes].chunks_exact(slot_bytes).map(<[u8]>::to_vec).collect())
}

/// READs a word: one round trip.
pub(crate) async fn read_word<V: Verbs>(verbs: &V, at: RemotePtr) -> Result<u64, Failed> {
    let buf = verbs.read(&Meter::default(), at, WORD_BYTES).await?.into_buf();
    Ok(u64::from_le_bytes(buf[..WORD_BYTES].try_into().expect("eight bytes")))
}

async fn cas<V: Verbs>(verbs: &V, at: RemotePtr, expected: u64, desired: u64) -> Result<u64, Failed> {
    let mut chain = Chain::new(at.server());
    chain.cas(at, expected, desired);
    Ok(verbs.submit(&Meter::default(), chain).await?.atomics[0])
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    const AT: RemotePtr = RemotePtr::from_bits(1 << 48 | 8192);

    #[test]
    fn a_header_comes_back() {
        let (owner, shape) = (Owner::new(7, ShardId(3), Port(9)), Shape { slot_bytes: 128, slots: 5 });
        let next = RemotePtr::new(ServerId(2), 4096);
        let mut header = [0xAA; 64];
        build(&mut header, next, owner, shape);
        assert_eq!(parse(AT, &header), Some((Page { at: AT, owner, shape }, next)));
        assert_eq!((owner.node(), shape.page_bytes()), (7, 64 + 5 * 128));
        assert_eq!(header[8..16], 0x0007_0003_0000_0009_u64.to_le_bytes());
    }

    #[test]
    fn bytes_that_are_no_header_are_none() {
        let mut header = [0; 64];
        assert_eq!(parse(AT, &header), None);
        for (slot_bytes, slots) in [(128, 0), (0, 5), (100, 5)] {
            build(&mut header, RemotePtr::NULL, Owner::NONE, Shape { slot_bytes, slots });
            assert_eq!(parse(AT, &header), None, "{slots} slots of {slot_bytes} bytes");
        }
    }

    #[test]
    fn slots_lie_behind_the_header() {
        let shape = Shape { slot_bytes: 128, slots: 2 };
        assert!(shape.slots_of(AT).eq([AT.add(64), AT.add(192)]));
    }
}
