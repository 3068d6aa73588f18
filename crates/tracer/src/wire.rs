//! What the process that attaches to others sends to the one that reads: frames of a kind, a size, and the bytes.

use std::io::{self, Read, Write};

use crate::stream::Batch;

/// A batch may be larger than a stream's by the blobs of one event.
const LARGEST: u32 = 1 << 30;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// All programs are attached to.
    Started,
    /// They could not be; why.
    Refused(String),
    /// Instructions retired, stops and living processes so far, and a batch.
    Batch([u64; 3], Batch),
}

impl Frame {
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        let kind = match self {
            Frame::Started => 0u32,
            Frame::Refused(why) => {
                body.extend_from_slice(why.as_bytes());
                1
            }
            Frame::Batch(counts, batch) => {
                for count in counts {
                    body.extend_from_slice(&count.to_le_bytes());
                }
                put(&mut body, &batch.records);
                for blob in &batch.blobs {
                    put(&mut body, blob);
                }
                2
            }
        };
        let size = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut frame = [kind.to_le_bytes(), size.to_le_bytes()].concat();
        frame.append(&mut body);
        out.write_all(&frame)
    }

    /// The next frame; an error at the end and for bytes that are none.
    pub(crate) fn read(input: &mut impl Read) -> io::Result<Frame> {
        let mut head = [0u8; 8];
        input.read_exact(&mut head)?;
        let (kind, size) = (number(&head[..4]) as u32, number(&head[4..]) as u32);
        if size > LARGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0u8; size as usize];
        input.read_exact(&mut body)?;
        match kind {
            0 => Ok(Frame::Started),
            1 => Ok(Frame::Refused(String::from_utf8_lossy(&body).into_owned())),
            2 => batch(&body).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn batch(body: &[u8]) -> Option<Frame> {
    let (counts, mut rest) = (body.get(..24)?, body.get(24..)?);
    let counts = [&counts[..8], &counts[8..16], &counts[16..]].map(number);
    let records = take(&mut rest)?;
    let mut blobs = Vec::new();
    while !rest.is_empty() {
        blobs.push(take(&mut rest)?);
    }
    Some(Frame::Batch(counts, Batch { records, blobs }))
}

fn put(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn take(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let size = number(rest.get(..4)?) as usize;
    let bytes = rest.get(4..size.checked_add(4)?)?.to_vec();
    *rest = &rest[4 + size..];
    Some(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_their_bytes() {
        let batch = Batch {
            records: vec![1; 80],
            blobs: vec![vec![], vec![2, 3]],
        };
        let frames = [
            Frame::Started,
            Frame::Refused("no".to_owned()),
            Frame::Batch([1, u64::MAX, 3], batch),
            Frame::Batch([0; 3], Batch::default()),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut input = &bytes[..];
        for frame in &frames {
            assert_eq!(&Frame::read(&mut input).unwrap(), frame);
        }
        assert!(Frame::read(&mut input).is_err());
    }

    #[test]
    fn bad_bytes_are_no_frame() {
        for bytes in [
            &[9u8, 0, 0, 0, 0, 0, 0, 0][..],
            &[2, 0, 0, 0, 2, 0, 0, 0, 1, 1],
            &[1, 0, 0, 0, 255, 255, 255, 255],
            &[1, 0, 0, 0, 2, 0, 0, 0, 65],
        ] {
            assert!(Frame::read(&mut &bytes[..]).is_err());
        }
    }
}
