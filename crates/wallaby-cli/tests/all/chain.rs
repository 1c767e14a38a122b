//! `wallaby chain` as its users run it, against servers of this test.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::ptr;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use wallaby::Endpoint;
use wallaby_chain::Chains;
use wallaby_chain_script::{ScriptLimits, Scripts};

#[wallaby::service(package = "test.post")]
trait Mail {
    async fn fetch(id: u32) -> String;
}

#[wallaby::service(package = "test.post")]
trait Ads {
    async fn pick(topic: String, most: u32) -> Vec<String>;
}

struct Server;

#[wallaby::serve]
impl Mail for Server {
    async fn fetch(&self, id: u32) -> String {
        format!("mail {id} about hops")
    }
}

#[wallaby::serve]
impl Ads for Server {
    async fn pick(&self, topic: String, most: u32) -> Vec<String> {
        (1..=most)
            .map(|number| format!("{topic} {number}"))
            .collect()
    }
}

const GLUE: &str = r#"// wallaby: rhai 1
fn advertise(state, mail) {
    print("got " + mail);
    tell(mail.len());
    if mail.contains("42") { throw #{ code: 5, message: "no such mail" } }
    next(state.ads, [mail.split(" ").pop(), state.most], "join", #{ mail: mail })
}

fn join(state, ads) {
    end(#{ mail: state.mail, ads: ads })
}
"#;

/// A server, and a folder with a chain that goes to it.
struct Served {
    _runtime: Runtime,
    _endpoint: Endpoint,
    at: String,
    folder: TempDir,
}

impl Served {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let builder = Endpoint::builder()
            .serve(mail::service(Server))
            .serve(ads::service(Server))
            .listen("tcp://127.0.0.1:0");
        let chains = Chains::new().code(Scripts::new(ScriptLimits::default()), |_| true);
        let endpoint = runtime.block_on(chains.add_to(builder).bind()).unwrap();
        let at = endpoint.address().unwrap().to_string();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("glue.rhai"), GLUE).unwrap();
        let served = Self {
            _runtime: runtime,
            _endpoint: endpoint,
            at,
            folder,
        };
        served.write(7, "functions = \"glue.rhai\"\nthen = \"advertise\"");
        served
    }

    /// A chain that begins with this mail.
    fn write(&self, id: u32, functions: &str) {
        let at = &self.at;
        let text = format!(
            "first = {{ server = \"{at}\", method = \"test.post.Mail/fetch\", arguments = [{id}] }}
{functions}
[state]
most = 2
[links.ads]
server = \"{at}\"
method = \"test.post.Ads/pick\"
"
        );
        fs::write(self.chain(), text).unwrap();
    }

    fn chain(&self) -> std::path::PathBuf {
        self.folder.path().join("chain.toml")
    }

    fn command(&self, command: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_wallaby"));
        program.args(["chain", command]).arg(self.chain());
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        program
    }

    /// What it says, its server's address and numbers of calls left out.
    fn check(&self, output: &Output, status: i32, stdout: &str, stderr: &str) {
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        let said = said.replace(&self.at, "AT");
        let said: Vec<&str> = said
            .lines()
            .map(|line| {
                let numbered = line.split_once(' ');
                match numbered.filter(|(number, _)| number.parse::<u64>().is_ok()) {
                    Some((_, rest)) => rest,
                    None => line,
                }
            })
            .collect();
        assert_eq!(said.join("\n"), stderr);
        assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), stdout);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
    }
}

const END: &str = "{\"ads\":[\"hops 1\",\"hops 2\"],\"mail\":\"mail 7 about hops\"}\n";

#[test]
fn a_chain_runs_at_its_servers() {
    let served = Served::start();
    let output = served.command("run").output().unwrap();
    let said = "at hop 1: got mail 7 about hops\nhas told: 17";
    served.check(&output, 0, END, said);

    served.write(42, "functions = \"glue.rhai\"\nthen = \"advertise\"");
    let output = served.command("run").output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.contains("failed: not found: no such mail"), "{said}");
    assert_eq!(output.status.code(), Some(4), "{output:?}");

    // Without functions the first answer is the end.
    served.write(8, "");
    let output = served.command("run").output().unwrap();
    served.check(&output, 0, "\"mail 8 about hops\"\n", "");
}

#[test]
fn a_chain_is_walked_and_shown() {
    let served = Served::start();
    let output = served.command("step").output().unwrap();
    let said = "\
calls test.post.Mail/fetch
  arguments: [7]
  server: \"AT\"
runs advertise
  answer: \"mail 7 about hops\"
  state: {\"ads\":\"(not JSON)\",\"most\":2}
at hop 1: got mail 7 about hops
has told: 17
calls test.post.Ads/pick
  arguments: [\"hops\",2]
  server: \"AT\"
runs join
  answer: [\"hops 1\",\"hops 2\"]
  state: {\"mail\":\"mail 7 about hops\"}";
    served.check(&output, 0, END, said);
}

/// A terminal, and whoever types there.
fn terminal() -> (File, OwnedFd) {
    let (mut typed, mut seen) = (0, 0);
    // SAFETY: both point to integers of this function, and the others may be null.
    let opened = unsafe {
        let (name, modes, size) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        libc::openpty(&mut typed, &mut seen, name, modes, size)
    };
    assert_eq!(opened, 0);
    // SAFETY: it has just been opened, and nobody else has it; so the other one.
    unsafe { (File::from_raw_fd(typed), OwnedFd::from_raw_fd(seen)) }
}

#[test]
fn what_comes_next_is_edited() {
    let served = Served::start();
    let editor = |name: &str, change: &str| {
        let path = served.folder.path().join(name);
        fs::write(&path, format!("sed -i '{change}' \"$1\"\n")).unwrap();
        format!("sh {}", path.display())
    };
    let run = |keys: &str, editor: String| {
        let (mut typed, seen) = terminal();
        typed.write_all(keys.as_bytes()).unwrap();
        let mut command = served.command("step");
        command.env("VISUAL", editor).stdin(Stdio::from(seen));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        (output, said)
    };
    // The arguments of the first link, and then to the end.
    let (output, _) = run("e\nc\n", editor("first", "s/^    7$/    9/"));
    let end = END.replace("mail 7", "mail 9");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), end);
    // The state of the first function, and what it is given.
    let (output, said) = run("n\ne\nc\n", editor("second", "s/2/3/; s/hops/boots/"));
    let end = "{\"ads\":[\"boots 1\",\"boots 2\",\"boots 3\"],\"mail\":\"mail 7 about boots\"}\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), end, "{said}");
    // What does not fit stays; and it ends where somebody says so.
    let (output, said) = run("e\nq\n", editor("third", "s/^    7$/    \"seven\"/"));
    assert!(
        said.contains("it stays as it is: arguments[0]: expected u32, got \"seven\""),
        "{said}"
    );
    assert_eq!(output.stdout, b"");
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn a_file_that_is_no_chain_is_told() {
    let served = Served::start();
    let check = |text: &str, expected: &str| {
        fs::write(served.chain(), text).unwrap();
        let output = served.command("run").output().unwrap();
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(said.contains(expected), "{text}: {said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    };
    let first = |method: &str, rest: &str| {
        let at = &served.at;
        format!("first = {{ server = \"{at}\", method = \"test.post.Mail/{method}\" {rest} }}\n")
    };
    check("first = 7", "is no chain");
    check("", "missing field `first`");
    check(&first("fetch", ", most = 2"), "unknown field `most`");
    check(
        &first("none", ""),
        "has no method test.post.Mail/none; it has",
    );
    check(
        &first("fetch", ", arguments = [\"x\"]"),
        "the arguments do not fit test.post.Mail/fetch",
    );
    let functions = "functions = \"missing.rhai\"\n";
    check(
        &format!(
            "{}{functions}then = \"f\"",
            first("fetch", ", arguments = [7]")
        ),
        "cannot read",
    );
    check(
        &format!("{}{functions}", first("fetch", ", arguments = [7]")),
        "say by 'then' which function",
    );
    fs::remove_file(served.chain()).unwrap();
    let output = served.command("run").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("cannot read") && !Path::new("chain.toml").exists(),
        "{said}"
    );
}
