//! ONC RPC: what arrives from peers, and the files that its compiler reads.

use bytes::Bytes;
use wallaby_idl::onc::Compiler;
use wallaby_onc::auth::{AuthSys, Credential, OpaqueAuth};
use wallaby_onc::message::{MessageBody, RpcMessage};
use wallaby_onc::record::RecordReader;
use wallaby_onc::rpcbind::interface::{
    AddressDescriptionEntry, PortCall, PortCallResult, PortMapping, PortMappingEntry, RemoteCall,
    RemoteResult, Rpcb, RpcbEntry, StatisticsOfVersions, TransportAddress,
};
use wallaby_onc::rpcbind::{netid, parse, universal_address};
use wallaby_onc::xdr::{self, Xdr, XdrLimits};

use crate::choices::Choices;

/// A message is written as it was read, and so is who calls.
pub(crate) fn message(bytes: &[u8]) {
    let message = match RpcMessage::decode(Bytes::copy_from_slice(bytes)) {
        Ok(message) => message,
        Err(error) => return drop(error.to_string()),
    };
    let written = message.encode().expect("what was read can be written");
    assert_eq!(RpcMessage::decode(written), Ok(message.clone()));
    if let MessageBody::Call(call) = message.body
        && let Ok(Credential::Sys(caller)) = Credential::from_opaque(call.credential)
    {
        let credential = caller.credential().expect("what was read can be written");
        let read = Credential::from_opaque(credential);
        assert_eq!(read, Ok(Credential::Sys(caller)));
    }
}

/// RecordReader are the same however the stream comes in pieces, and none is longer than the limit.
pub(crate) fn records(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let limit = choices.number().min(1 << 20) as usize;
    let piece = choices.byte().max(1).into();
    let stream = choices.rest();
    let at_once = read(limit, stream, stream.len().max(1));
    let in_pieces = read(limit, stream, piece);
    assert_eq!(at_once, in_pieces);
    assert!(at_once.0.iter().all(|record| record.len() <= limit));
}

/// The records of a stream; whether it went wrong in the end.
fn read(limit: usize, stream: &[u8], piece: usize) -> (Vec<Bytes>, bool) {
    let mut records = RecordReader::new(limit);
    let mut found = Vec::new();
    for piece in stream.chunks(piece) {
        records.handle_input(piece);
        loop {
            match records.poll_record() {
                Ok(Some(record)) => found.push(record),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(records.poll_record(), Err(error));
                    return (found, true);
                }
            }
        }
    }
    (found, false)
}

/// Values of rpcbind, and of credentials.
pub(crate) fn values(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 13 {
        0 => value::<PortMapping>(bytes),
        1 => value::<PortMappingEntry>(bytes),
        2 => value::<PortCall>(bytes),
        3 => value::<PortCallResult>(bytes),
        4 => value::<Rpcb>(bytes),
        5 => value::<RpcbEntry>(bytes),
        6 => value::<RemoteCall>(bytes),
        7 => value::<RemoteResult>(bytes),
        8 => value::<TransportAddress>(bytes),
        9 => value::<AddressDescriptionEntry>(bytes),
        10 => value::<StatisticsOfVersions>(bytes),
        11 => value::<AuthSys>(bytes),
        _ => value::<OpaqueAuth>(bytes),
    }
}

fn value<T: Xdr + PartialEq + std::fmt::Debug>(bytes: Bytes) {
    match xdr::decode::<T>(bytes, XdrLimits::default()) {
        Ok(value) => {
            let written = xdr::encode(&value).expect("what was read can be written");
            assert_eq!(xdr::decode::<T>(written, XdrLimits::default()), Ok(value));
        }
        Err(error) => drop(error.to_string()),
    }
}

/// An address that rpcbind is told: a network id, a space, a universal address.
pub(crate) fn address(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((network, address)) = text.split_once(' ') else {
        return;
    };
    if let Some(peer) = parse(network, address) {
        let again = parse(netid(&peer), &universal_address(&peer));
        // An IPv4 address in IPv6's clothes is one of IPv4 from then on.
        let is_mapped = network.ends_with('6') && !netid(&peer).ends_with('6');
        assert!(is_mapped || again == Some(peer), "{text}: {again:?}");
    }
}

/// The compiler makes code of a file, or says what is wrong in it.
pub(crate) fn interface(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // What lies on this machine is no input.
    if text.contains("include") {
        return;
    }
    let compiler = Compiler::new().methods();
    if let Err(error) = compiler.compile_text("fuzz.x", text) {
        drop(error.to_string());
    }
}
