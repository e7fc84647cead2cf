//! Frames separate messages in a stream of bytes. Pure: bytes in, frames out.
//!
//! ```text
//! 0                4                              4 + length
//! +----------------+------------------------------+
//! | length, u32 LE | message: postcard            |
//! +----------------+------------------------------+
//!  1 to 65,536
//! ```
//!
//! A message is a pair of its number (u32, from 0 on, in each direction of a connection) and a
//! [`super::wire::Request`], or a `Result` of a [`super::wire::Reply`]. A reply bears the number of its request, and
//! replies come in the order of the requests.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The longest message of a frame.
pub const FRAME_BYTES_MAX: usize = 65_536;
/// Bytes before the message.
const LENGTH_BYTES: usize = 4;

/// Reasons why bytes are no frame, or a frame is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the message names the field")]
pub enum FrameError {
    /// A length that no frame has.
    #[error("a frame of {bytes} bytes, of 1 to {FRAME_BYTES_MAX} that are allowed")]
    Length { bytes: u32 },
    /// The frame does not hold exactly one message.
    #[error("a frame that is not a message")]
    Message,
}

/// Bytes that have arrived and were not taken yet; never more than were put in.
#[derive(Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Position of the first byte that was not taken.
    start: usize,
}

impl FrameBuffer {
    /// Appends bytes that have arrived.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next `N` bytes, as soon as they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.bytes[self.start..].first_chunk()?;
        self.start += N;
        Some(taken)
    }

    /// Yields the next frame's message, as soon as it is there as a whole.
    ///
    /// # Errors
    /// If the length is impossible: nothing can be read from this stream any more.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let Some(length) = self.length()? else { return Ok(None) };
        let begin = self.start + LENGTH_BYTES;
        if self.bytes.len() - begin < length {
            return Ok(None);
        }
        self.start = begin + length;
        Ok(Some(&self.bytes[begin..begin + length]))
    }

    /// Tells whether [`FrameBuffer::next_frame`] would yield a frame or an error.
    pub fn has_frame(&self) -> bool {
        match self.length() {
            Ok(Some(length)) => self.bytes.len() - self.start >= LENGTH_BYTES + length,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    fn length(&self) -> Result<Option<usize>, FrameError> {
        let Some(&length) = self.bytes[self.start..].first_chunk() else { return Ok(None) };
        let bytes = u32::from_le_bytes(length);
        if bytes == 0 || bytes as usize > FRAME_BYTES_MAX {
            return Err(FrameError::Length { bytes });
        }
        Ok(Some(bytes as usize))
    }
}

/// Appends a message as a frame.
///
/// # Panics
/// If it is longer than a frame: the code that makes a message bounds it.
pub fn put<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    let bytes =
        postcard::to_stdvec(message).expect("messages have no maps of unknown length and no foreign types");
    assert!(bytes.len() <= FRAME_BYTES_MAX, "a message of {} bytes", bytes.len());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Parses the message of a frame.
///
/// # Errors
/// If it is none, or something follows it.
pub fn parse<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_frames_however_the_stream_is_cut() {
        let messages: Vec<Vec<u8>> = vec![vec![7; 3], vec![], vec![9; 60_000], vec![1]];
        let mut stream = Vec::new();
        messages.iter().for_each(|message| put(message, &mut stream));
        for piece in [1, 3, 4, 5, 4096, 1 << 20] {
            let (mut buffer, mut found) = (FrameBuffer::default(), Vec::new());
            for bytes in stream.chunks(piece) {
                buffer.extend(bytes);
                assert!(buffer.bytes.len() <= FRAME_BYTES_MAX + LENGTH_BYTES + piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    found.push(parse::<Vec<u8>>(frame).unwrap());
                }
                assert!(!buffer.has_frame());
            }
            assert_eq!(found, messages);
        }
    }

    #[test]
    fn refuses_impossible_lengths_before_the_rest_arrives() {
        for bytes in [0, 65_537, u32::MAX] {
            let mut buffer = FrameBuffer::default();
            buffer.extend(&bytes.to_le_bytes());
            assert!(buffer.has_frame());
            assert_eq!(buffer.next_frame(), Err(FrameError::Length { bytes }));
        }
    }

    #[test]
    fn a_frame_is_one_message() {
        assert_eq!(parse::<u8>(&[5]), Ok(5));
        assert_eq!(parse::<u8>(&[5, 0]), Err(FrameError::Message));
        assert_eq!(parse::<Vec<u8>>(&[0xff, 0xff, 0xff, 0xff, 0xf]), Err(FrameError::Message));
    }
}
