//! What clients of `apps/storage` bring along: what one server has said, another one writes. These servers know nothing of Wallaby, so
//! answers and arguments are as their own protocols have them.
//!
//! ```text
//! rustup target add wasm32-unknown-unknown
//! cargo build -p wallaby-chain-guest --example copy --profile module --target wasm32-unknown-unknown
//! cp target/wasm32-unknown-unknown/module/examples/copy.wasm apps/storage/src/
//! ```

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;

use wallaby_chain_guest::{Answer, Error, Hop, Link, State, Step};

wallaby_chain_guest::alone!();
wallaby_chain_guest::export!(write, greet, keep);

/// What `READ` of NFS version 3 has answered is written by another server of NFS.
fn write(state: State, read: Answer<'_>) -> Result<Step, Error> {
    let mut read = Words(read.bytes());
    match read.word()? {
        0 => {}
        status => return Err(failed(status)),
    }
    if read.word()? == 1 {
        read.take(ATTRIBUTES)?;
    }
    read.take(8)?; // how many bytes, and whether these are the last ones
    let data = read.opaque()?;
    if data.is_empty() {
        return Err(no("the file has become shorter"));
    }
    written(&state, data)
}

/// Who is in a file of a server of HTTP is greeted by a server of gRPC.
fn greet(state: State, file: Answer<'_>) -> Result<Step, Error> {
    let name: &[u8] = file.read()?;
    let length = u8::try_from(name.len()).ok().filter(|length| *length < 128);
    let length = length.ok_or_else(|| no("the name is too long"))?;
    let request = [&[FIRST_FIELD, length], name].concat();
    let greeter: Link = state.get("greeter")?;
    Ok(Hop::to_raw(&greeter, request).then("keep", state).into())
}

/// What that says is written by a server of NFS.
fn keep(state: State, reply: Answer<'_>) -> Result<Step, Error> {
    match reply.bytes() {
        [FIRST_FIELD, length @ 0..128, text @ ..] if usize::from(*length) == text.len() => {
            written(&state, text)
        }
        _ => Err(no("expected a message with one text below 128 bytes")),
    }
}

/// The end of the chain: `WRITE`, on stable storage, where the state says.
fn written(state: &State, data: &[u8]) -> Result<Step, Error> {
    let (to, file): (Link, Vec<u8>) = (state.get("to")?, state.get("file")?);
    let offset: u64 = state.get("offset")?;
    let length = u32::try_from(data.len()).map_err(|_| no("it is too long"))?;
    let mut arguments = Vec::with_capacity(data.len() + file.len() + 32);
    opaque(&mut arguments, &file);
    arguments.extend_from_slice(&offset.to_be_bytes());
    arguments.extend_from_slice(&length.to_be_bytes());
    arguments.extend_from_slice(&FILE_SYNC.to_be_bytes());
    opaque(&mut arguments, data);
    Ok(Hop::to_raw(&to, arguments).into())
}

fn opaque(to: &mut Vec<u8>, data: &[u8]) {
    to.extend_from_slice(&(data.len() as u32).to_be_bytes());
    to.extend_from_slice(data);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// What is left of an answer in XDR.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let parts = self.0.split_at_checked(length);
        let (taken, left) = parts.ok_or_else(|| no("the answer is too short"))?;
        self.0 = left;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?;
        Ok(bytes
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    fn opaque(&mut self) -> Result<&'a [u8], Error> {
        let length = self.word()?;
        self.take(length as usize)
    }
}

fn failed(status: u32) -> Error {
    let mut text = String::from("READ has failed with NFS status ");
    let mut digits = Vec::new();
    let mut left = status;
    while left > 0 {
        digits.push(b'0' + (left % 10) as u8);
        left /= 10;
    }
    text.extend(digits.iter().rev().map(|digit| char::from(*digit)));
    no(&text)
}

fn no(why: &str) -> Error {
    Error::new(Error::FAILED_PRECONDITION, why.into())
}

/// Bytes of `fattr3` (RFC 1813).
const ATTRIBUTES: usize = 84;
/// A write is on stable storage when it is answered.
const FILE_SYNC: u32 = 2;
/// The head of a message's first field, if that is a text.
const FIRST_FIELD: u8 = 0x0a;
