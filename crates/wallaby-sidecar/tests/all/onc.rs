//! Servers of ONC RPC behind a sidecar.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use wallaby::{CallError, Code, Health, MethodDefinition};
use wallaby_chain::pipe;
use wallaby_onc::auth::{AuthError, AuthSys};
use wallaby_onc::endpoint::EndpointChannel;
use wallaby_onc::server::{Server, ServerOptions};
use wallaby_onc::xdr::{self, DecodeError, Reader, Text, Writer, XdrLimits};
use wallaby_onc::{AcceptError, Credential, Principal, Program, Programs, Refusal};

use crate::world::{World, soon};

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    clippy::use_self,
    reason = "what is generated is public, and this is no library"
)]
mod interface {
    include!("../../../wallaby-onc/tests/generated/cross_methods.rs");
}

use interface::cross::cross_v1::{self, methods};
use interface::{Block, Found, People};

const CROSS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../wallaby-onc/tests/interfaces/cross.x"
);
const NFS3: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs3.x");

/// A server that knows nothing of Wallaby. Who asks for the people waits.
struct Old(Arc<Semaphore>);

impl cross_v1::Server for Old {
    async fn greet(&self, _: &Principal, name: Text) -> Result<Text, Refusal> {
        Ok(format!("Hello {name}").into())
    }

    async fn older(&self, _: &Principal, people: People) -> Result<People, Refusal> {
        self.0.add_permits(1);
        std::future::pending::<()>().await;
        Ok(people)
    }

    async fn reverse(&self, _: &Principal, block: Block) -> Result<Block, Refusal> {
        let bytes: Bytes = block.bytes.iter().rev().copied().collect();
        Ok(Block { bytes })
    }

    async fn lookup(&self, _: &Principal, _: Text) -> Result<Found, Refusal> {
        Err(AcceptError::SystemError.into())
    }

    async fn who(&self, caller: &Principal) -> Result<u32, Refusal> {
        match &caller.identity {
            Credential::Sys(user) => Ok(user.uid),
            _ => Err(AuthError::TooWeak.into()),
        }
    }
}

async fn old(at: SocketAddr) -> (Server, SocketAddr, Arc<Semaphore>) {
    let waiting = Arc::new(Semaphore::new(0));
    let programs = Programs::new().with(cross_v1::Service(Old(Arc::clone(&waiting))));
    let server = Server::new(programs, ServerOptions::default());
    let at = server.listen_tcp(at).await.unwrap();
    server.listen_udp(at).await.unwrap();
    (server, at, waiting)
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn before(server: &str, more: &str) -> World {
    World::new(&format!(
        "[[onc]]\nserver = \"{server}\"\ninterface = \"{CROSS}\"\n{more}\n"
    ))
    .await
}

const SERVICE: &str = "onc.536871065.1";

#[tokio::test]
async fn procedures_are_methods_over_all_that_servers_listen_at() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (server, at, _) = old(any()).await;
    server.listen_unix(&socket).await.unwrap();
    for address in [
        format!("tcp://{at}"),
        format!("udp://{at}"),
        format!("unix://{}", socket.display()),
    ] {
        let world = before(&address, "limits = { answer = 2000 }").await;
        let client = world.client();
        let greeting = client.call(&methods::GREET, methods::GreetArguments("Ada".into()));
        assert_eq!(soon(greeting).await.unwrap().0, "Hello Ada");
        let (user, nobody) = (
            AuthSys::of_this_process().unwrap(),
            EndpointChannel::new(client.clone()),
        );
        let known = nobody
            .clone()
            .credential(&user.credential().unwrap())
            .unwrap();
        assert_eq!(
            soon(cross_v1::Client(known).who()).await.unwrap(),
            user.uid,
            "it is passed on as it is"
        );
        let refused = soon(cross_v1::Client(nobody).who()).await.unwrap_err();
        assert!(refused.to_string().contains("too weak"), "{refused}");
        let failed = client.call(&methods::LOOKUP, methods::LookupArguments("x".into()));
        assert_eq!(soon(failed).await.unwrap_err().code(), Code::Internal);
        let long = Block {
            bytes: vec![1; 3000].into(),
        };
        let failed = client.call(&methods::REVERSE, methods::ReverseArguments(long));
        assert_eq!(
            soon(failed).await.unwrap_err().code(),
            Code::ResourceExhausted
        );
        let garbage = MethodDefinition::new("onc.536871065.1/1", "xdr", 0, 0).unwrap();
        let mut garbage = client.call_raw(&Arc::new(garbage), Bytes::from_static(b"\0\0\0\x07"));
        let failed = soon(garbage.next()).await.unwrap().unwrap_err();
        assert_eq!(failed.code(), Code::InvalidArgument);
        let wrong = client.metadata_bin("onc-credential", Bytes::from_static(b"no credential"));
        let failed = wrong.call(&methods::GREET, methods::GreetArguments("Ada".into()));
        assert_eq!(
            soon(failed).await.unwrap_err().code(),
            Code::Unauthenticated
        );
        world.until(SERVICE, Health::Serving).await;
    }
}

#[tokio::test]
async fn a_server_may_be_gone_and_come_again_and_be_a_link() {
    let (server, at, waiting) = old(any()).await;
    let world = before(&format!("tcp://{at}"), "").await;
    world.until(SERVICE, Health::Serving).await;
    let greet = async || {
        let chain = pipe(
            world.at(),
            &methods::GREET,
            methods::GreetArguments("Ada".into()),
        );
        soon(chain.call(world.client.caller()).unwrap()).await
    };
    assert_eq!(greet().await.unwrap().0, "Hello Ada");
    let lost = world
        .client()
        .call(&methods::OLDER, methods::OlderArguments(People(vec![])));
    let lost = tokio::spawn(lost.into_future());
    soon(waiting.acquire()).await.unwrap().forget();
    drop(server);
    assert_eq!(
        soon(lost).await.unwrap().unwrap_err().code(),
        Code::Unfinished
    );
    let gone = greet().await.unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    world.until(SERVICE, Health::NotServing).await;
    let (_server, _, _) = old(at).await;
    world.until(SERVICE, Health::Serving).await;
    assert_eq!(greet().await.unwrap().0, "Hello Ada");
}

/// A server of NFS version 3 with one file, of which these procedures are enough to read it.
struct Nfs;

impl Program for Nfs {
    const PROGRAM: u32 = 100_003;
    const VERSION: u32 = 3;

    async fn handle(
        &self,
        _: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        let mut reader = Reader::new(arguments, XdrLimits::default());
        let garbage = |_: DecodeError| Refusal::from(AcceptError::GarbageArguments);
        let mut writer = Writer::new();
        match procedure {
            0 => {}
            3 => {
                reader.opaque(Some(64)).map_err(garbage)?;
                let name = reader.text(None).map_err(garbage)?;
                match &name[..] {
                    b"song.txt" => {
                        writer.u32(0);
                        writer.opaque(b"the song", Some(64)).unwrap();
                        writer.u32(0); // no attributes of it, nor of its folder
                    }
                    _ => writer.u32(2), // NFS3ERR_NOENT
                }
                writer.u32(0);
            }
            6 => {
                let file = reader.opaque(Some(64)).map_err(garbage)?;
                assert_eq!(&*file, b"the song");
                [0, 0, 3, 1].into_iter().for_each(|word| writer.u32(word)); // without attributes, three bytes, the end
                writer.opaque(b"hop", None).unwrap();
            }
            _ => return Err(AcceptError::ProcedureUnavailable.into()),
        }
        Ok(writer.into_bytes())
    }
}

/// A sidecar before a server of NFS, and that of its mounts.
async fn nfs(server: &str, mounts: &str) -> World {
    let interface = format!("interface = \"{NFS3}\"");
    World::new(&format!(
        "[[onc]]\nserver = \"{server}\"\n{interface}\nprograms = [\"NFS_PROGRAM\"]\n\
         [[onc]]\nserver = \"{mounts}\"\n{interface}\nprograms = [\"MOUNT_PROGRAM\"]\n"
    ))
    .await
}

/// What a procedure answers, as root.
async fn call(world: &World, procedure: &str, arguments: Writer) -> Result<Bytes, CallError> {
    let root = AuthSys {
        uid: 0,
        gid: 0,
        ..AuthSys::of_this_process().unwrap()
    };
    let credential = xdr::encode(&root.credential().unwrap()).unwrap();
    let method = MethodDefinition::new(procedure, "xdr", 0, 0).unwrap();
    let client = world.client().metadata_bin("onc-credential", credential);
    let mut call = client.call_raw(&Arc::new(method), arguments.into_bytes());
    Ok(soon(call.next()).await.unwrap()?.payload)
}

#[tokio::test]
async fn nfs_is_an_interface_as_any() {
    let server = Server::new(Programs::new().with(Nfs), ServerOptions::default());
    let at = server.listen_tcp(any()).await.unwrap();
    let world = nfs(&format!("tcp://{at}"), &format!("tcp://{at}")).await;
    world.until("onc.100003.3", Health::Serving).await;
    let call = async |procedure, arguments| call(&world, procedure, arguments).await;
    let mut lookup = Writer::new();
    lookup.opaque(b"root", Some(64)).unwrap();
    lookup.text(&"song.txt".into(), None).unwrap();
    let found = call("onc.100003.3/3", lookup).await.unwrap();
    let mut found = Reader::new(found, XdrLimits::default());
    assert_eq!(found.u32().unwrap(), 0, "NFS3_OK");
    let mut read = Writer::new();
    read.opaque(&found.opaque(Some(64)).unwrap(), Some(64))
        .unwrap();
    [0, 0, 100].into_iter().for_each(|word| read.u32(word)); // from the beginning, so many
    let text = call("onc.100003.3/6", read).await.unwrap();
    assert!(text.ends_with(b"hop\0"), "{text:?}");
    let failed = call("onc.100003.3/21", Writer::new()).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unimplemented, "{failed}");
    let failed = call("onc.100005.3/1", Writer::new()).await.unwrap_err();
    assert_eq!(
        failed.code(),
        Code::NotFound,
        "there is no such program: {failed}"
    );
}
