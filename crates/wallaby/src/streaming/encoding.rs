//! Items as the bytes of a body.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use wallaby_proto::items::put_length;

use super::given::Given;
use crate::codec::Codec;

/// Items that are there together travel in chunks of about this size.
const CHUNK: usize = 32 * 1024;

/// A longer item is not copied.
const LARGE: usize = 8 * 1024;

/// The bytes of items, read only as fast as the bytes are.
pub(super) struct Encoding<T, C> {
    items: Given<T>,
    /// So many were encoded.
    encoded: u64,
    room: BytesMut,
    /// The item behind what is in `room`.
    large: Option<Bytes>,
    end: Option<Result<(), String>>,
    codec: PhantomData<fn() -> C>,
}

impl<T, C: Codec<T>> Encoding<T, C> {
    pub(super) fn new(items: Given<T>) -> Self {
        Self {
            items,
            encoded: 0,
            room: BytesMut::new(),
            large: None,
            end: None,
            codec: PhantomData,
        }
    }

    /// Encodes what is there, as far as it fits in a chunk; whether more may come later.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        while self.room.len() < CHUNK && self.large.is_none() && self.end.is_none() {
            match self.items.poll_item(cx) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(item))) => self.put(&item),
                Poll::Ready(Some(Err(why))) => self.end = Some(Err(why)),
                Poll::Ready(None) => self.end = Some(Ok(())),
            }
        }
        false
    }

    fn put(&mut self, item: &T) {
        let payload = match C::encode(item) {
            Ok(payload) => payload,
            Err(error) => {
                let why = format!("item {} cannot be encoded: {error}", self.encoded);
                return self.end = Some(Err(why));
            }
        };
        self.encoded += 1;
        put_length(&mut self.room, payload.len());
        if payload.len() > LARGE {
            self.large = Some(payload);
        } else {
            self.room.extend_from_slice(&payload);
        }
    }
}

impl<T, C: Codec<T>> Stream for Encoding<T, C> {
    type Item = Result<Bytes, String>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let encoding = self.get_mut();
        if let Some(item) = encoding.large.take() {
            return Poll::Ready(Some(Ok(item)));
        }
        let more = encoding.fill(cx);
        if !encoding.room.is_empty() {
            let chunk = std::mem::take(&mut encoding.room);
            return Poll::Ready(Some(Ok(chunk.freeze())));
        }
        if more {
            return Poll::Pending;
        }
        // An error is told once.
        let end = encoding.end.replace(Ok(()));
        Poll::Ready(end.and_then(Result::err).map(Err))
    }
}

// The stream of items is in a box.
impl<T, C> Unpin for Encoding<T, C> {}
