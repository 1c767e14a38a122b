//! What follows the request of a call, from a file or from standard input, which may be a terminal or a pipe that stays open: it is read by
//! a thread, as fast as it is sent.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use anyhow::Context as _;
use bytes::Bytes;
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc;
use wallaby::codec::Raw;
use wallaby::{Body, IntoStreaming};

use super::types::Items;
use crate::output::plain;

/// So many chunks or items are read ahead.
const AHEAD: usize = 16;

/// How long a chunk is, in bytes.
const CHUNK: usize = 32 * 1024;

type Part = Result<Bytes, String>;

/// A file, or standard input.
pub(super) fn open(name: &str) -> anyhow::Result<Box<dyn Read + Send>> {
    if name == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(name).with_context(|| format!("cannot read {name}"))?;
    Ok(Box::new(file))
}

/// Its bytes.
pub(super) fn bytes(mut reader: impl Read + Send + 'static) -> Body {
    Body::from_stream(parts(move |send| {
        let mut chunk = vec![0; CHUNK];
        loop {
            let part = match reader.read(&mut chunk) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&chunk[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error.to_string()),
            };
            if !send(part) {
                return;
            }
        }
    }))
}

/// Its JSON values, as items.
pub(super) fn items(reader: impl Read + Send + 'static, items: Items) -> Body {
    let parts = parts(move |send| {
        let values = serde_json::Deserializer::from_reader(BufReader::new(reader));
        for (number, value) in values.into_iter::<Value>().enumerate() {
            let value = value.map_err(|error| format!("item {number} is no JSON: {error}"));
            let item = value.and_then(|value| {
                let item = items.payload(value, &format!("item {number}"));
                item.map_err(|error| error.to_string())
            });
            if !send(item) {
                return;
            }
        }
    });
    IntoStreaming::<Bytes, Raw>::into_streaming(parts).into_body()
}

/// What a thread sends until nobody wants more, or an error was among it, which is also told here.
fn parts(read: impl FnOnce(&dyn Fn(Part) -> bool) + Send + 'static) -> Parts {
    let (sender, receiver) = mpsc::channel(AHEAD);
    thread::spawn(move || {
        read(&|part| {
            let goes_on = part.is_ok();
            if let Err(why) = &part {
                eprintln!("following: {}", plain(why));
            }
            sender.blocking_send(part).is_ok() && goes_on
        });
    });
    Parts(receiver)
}

struct Parts(mpsc::Receiver<Part>);

impl Stream for Parts {
    type Item = Part;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        self.0.poll_recv(cx)
    }
}
