//! One chain over servers that others wrote, of three protocols: Python's own server of HTTP, the greeter of gRPC for Go, and
//! nfs-ganesha.

use std::env;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command as Blocking, Stdio};

use bytes::Bytes;
use tokio::process::{Child, Command};
use wallaby::codec::Raw;
use wallaby::{Address, CallError, Code, Endpoint, Method, One};
use wallaby_chain::{ChainCode, Hop, Link, State, start_by};
use wallaby_onc::auth::AuthSys;
use wallaby_onc::endpoint::{CREDENTIAL, XdrCodec};
use wallaby_onc::xdr;
use wallaby_sidecar::{Config, Sidecar};

use crate::world::{Yard, done, is_possible};

#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::all,
    clippy::use_self,
    reason = "what is generated has all of the interface, by its names"
)]
mod interface {
    include!(concat!(env!("OUT_DIR"), "/nfs3.rs"));
}

use interface::mount_program::mount_v3::methods as mounts;
use interface::nfs_program::nfs_v3::methods;
use interface::{Diropargs3, Dirpath, LOOKUP3args, LOOKUP3res, Mountres3, NfsFh3, WRITE3res};

#[wallaby::service(package = "http")]
trait Files {
    async fn get(path: String) -> Vec<u8>;
}

static SAY_HELLO: Method<(Bytes,), One<Bytes>, Raw> = Method::new("helloworld.Greeter/SayHello");

const TEST: &str = "mixed::one_chain_goes_over_three_protocols_and_its_servers_may_come_and_go";
const ENTERED: &str = "WALLABY_TEST_NAMESPACE";
const PYTHON: u16 = 8000;
const GREETER: u16 = 50_051;

/// Starts a server, which is killed when this is dropped, and waits until it listens.
fn start(command: &mut Command, port: u16) -> Child {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let server = command.kill_on_drop(true).spawn().unwrap();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::yield_now();
    }
    server
}

fn python(folder: &Path) -> Child {
    let mut python = Command::new("python3");
    python.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
    start(python.arg(folder).arg(PYTHON.to_string()), PYTHON)
}

fn greeter() -> Child {
    let mut greeter = Command::new(built().unwrap());
    start(greeter.arg(format!("-port={GREETER}")), GREETER)
}

/// Where `scripts/setup.sh` has made it.
fn built() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let program = target?.join("tools/greeter/greeter_server");
    program.is_file().then_some(program)
}

/// Whether this is a network of the test's own: the greeter listens at all addresses. If not, the test is run again in one.
fn is_entered() -> bool {
    if env::var_os(ENTERED).is_some() {
        return true;
    }
    if !is_possible(TEST) {
        return false;
    }
    if built().is_none() {
        let _ = writeln!(
            io::stderr(),
            "SKIPPED: {TEST}: scripts/setup.sh could not make the greeter of gRPC for Go"
        );
        return false;
    }
    let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture";
    let mut inside = Blocking::new("unshare");
    inside
        .args(["--net", "--", "sh", "-c", script])
        .arg(env::current_exe().unwrap())
        .arg(TEST);
    let output = inside.env(ENTERED, "1").output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(
        output.status.success() && said.contains("1 passed"),
        "in its own network:\n{said}"
    );
    false
}

/// A sidecar that is told this besides where it listens.
async fn sidecar(folder: &Path, name: &str, config: &str) -> Sidecar {
    let at = folder.join(format!("{name}.sock"));
    let at = at.display();
    let config = format!("listen = [\"unix://{at}\"]\ncode = {{ allow = \"callers\" }}\n{config}");
    Sidecar::start(Config::parse(&config).unwrap())
        .await
        .unwrap()
}

fn at(sidecar: &Sidecar) -> Address {
    sidecar.endpoint().address().unwrap().clone()
}

#[tokio::test]
async fn one_chain_goes_over_three_protocols_and_its_servers_may_come_and_go() {
    if !is_entered() {
        return;
    }
    let mut yard = Yard::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("name"), "Ada").unwrap();
    let (mut http_server, mut grpc_server) = (python(folder.path()), greeter());
    let http = format!("[[http]]\nname = \"Files\"\nserver = \"http://127.0.0.1:{PYTHON}\"\n");
    let http = sidecar(folder.path(), "http", &http).await;
    let grpc = format!(
        "[[grpc]]\nserver = \"http://127.0.0.1:{GREETER}\"\nservices = [\"helloworld.Greeter\"]\n"
    );
    let grpc = sidecar(folder.path(), "grpc", &grpc).await;

    // A file that is there, longer than what will be in it.
    yard.put("a", "greeting", b"................");
    let here = format!("unix://{}/client.sock", folder.path().display());
    let client = Endpoint::bind(&here).await.unwrap();
    let user = AuthSys::of_this_process().unwrap().credential().unwrap();
    let caller = client
        .caller()
        .metadata_bin(CREDENTIAL, xdr::encode(&user).unwrap());
    let nfs: Address = yard.at("a").parse().unwrap();
    let asked = caller.clone().at(&nfs);
    let root = mounts::Mountproc3MntArguments(Dirpath("/".into()));
    let Mountres3::Mnt3Ok(root) = asked.call(&mounts::MOUNTPROC3_MNT, root).await.unwrap().0 else {
        panic!("it is not mounted");
    };
    let dir = NfsFh3 {
        data: root.fhandle.0,
    };
    let name = interface::Filename3("greeting".into());
    let what = methods::Nfsproc3LookupArguments(LOOKUP3args {
        what: Diropargs3 { dir, name },
    });
    let LOOKUP3res::Nfs3Ok(found) = asked.call(&methods::NFSPROC3_LOOKUP, what).await.unwrap().0
    else {
        panic!("it is not found");
    };

    let greet = async || -> Result<(), CallError> {
        let state = State::new()
            .with("greeter", &Link::to(at(&grpc), &SAY_HELLO))
            .unwrap();
        let state = state
            .with("to", &Link::to(&nfs, &methods::NFSPROC3_WRITE))
            .unwrap();
        let state = state.with("file", &found.object.data.to_vec()).unwrap();
        let state = state.with("offset", &0_u64).unwrap();
        let functions = ChainCode::new(include_bytes!("../../src/copy.wasm"));
        let first = Hop::to(at(&http), &files::GET, ("/name".into(),));
        let chain = start_by::<methods::Nfsproc3WriteResult, XdrCodec>(
            first.then(functions.function("greet"), state),
        );
        let WRITE3res::Nfs3Ok(written) = chain.call(caller.clone()).unwrap().await?.0 else {
            panic!("it is not written");
        };
        assert_eq!(written.count as usize, "Hello Ada".len());
        Ok(())
    };
    // A server that is there again is dialled when its pause is over.
    let greet_again = async || {
        while let Err(error) = greet().await {
            assert_eq!(error.code(), Code::Unavailable, "{error}");
        }
    };
    greet().await.unwrap();
    assert_eq!(yard.get("a", "greeting").unwrap(), b"Hello Ada.......");

    let ports = [PYTHON, GREETER, 20_491]; // the last one is that of nfs-ganesha
    for port in ports {
        yard.put("a", "greeting", b"................");
        match port {
            PYTHON => http_server.kill().await.unwrap(),
            GREETER => grpc_server.kill().await.unwrap(),
            _ => yard.tell("kill a"),
        }
        let gone = greet().await.unwrap_err().to_string();
        assert!(gone.contains(&format!("127.0.0.1:{port}")), "{gone}");
        assert_eq!(yard.get("a", "greeting").unwrap(), b"................");
        match port {
            PYTHON => http_server = python(folder.path()),
            GREETER => grpc_server = greeter(),
            _ => yard.tell("start a"),
        }
        greet_again().await;
        assert_eq!(yard.get("a", "greeting").unwrap(), b"Hello Ada.......");
    }
    // What a chain has written is a file as any.
    done(yard.copy("greeting", &yard.at("b"), &[]));
    assert_eq!(yard.get("b", "greeting").unwrap(), b"Hello Ada.......");
}
