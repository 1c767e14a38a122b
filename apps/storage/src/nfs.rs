//! What a client says to a server of NFS version 3 behind a sidecar (RFC 1813).

use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use tokio::time::{Instant, sleep};
use wallaby::{Address, CallError, Caller, Client, Code, Endpoint};
use wallaby_chain::ChainError;
use wallaby_onc::auth::AuthSys;
use wallaby_onc::endpoint::CREDENTIAL;
use wallaby_onc::xdr;

#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::all,
    clippy::use_self,
    reason = "what is generated has all of the interface, by its names"
)]
pub(crate) mod interface {
    include!(concat!(env!("OUT_DIR"), "/nfs3.rs"));
}

pub(crate) use interface::NfsFh3;
pub(crate) use interface::mount_program::mount_v3::methods as mounts;
pub(crate) use interface::nfs_program::nfs_v3::methods;
use interface::{
    CREATE3args, CREATE3res, CREATE3resok, Createhow3, Diropargs3, Dirpath, Fattr3, GETATTR3args,
    GETATTR3res, LOOKUP3args, LOOKUP3res, LOOKUP3resok, Mountres3, Nfsstat3, PostOpAttr, PostOpFh3,
    READ3args, READ3res, REMOVE3args, RENAME3args, RENAME3res, Sattr3, SetAtime, SetGid3, SetMode3,
    SetMtime, SetSize3, SetUid3, StableHow, TimeHow, WRITE3args, WRITE3res,
};

/// Why a server has not done what it was asked.
#[derive(Debug)]
pub(crate) enum Failed {
    /// There is no answer.
    Call(CallError),
    /// The answer says so.
    Status(Nfsstat3),
    /// There is no such chain.
    Chain(ChainError),
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// A server that comes back within this time is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience(pub(crate) Duration);

/// The longest pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

impl Patience {
    /// Does this, again and again while a server is gone. It may run several times, as all that is done here.
    pub(crate) async fn wait_for<T, F>(self, work: impl Fn() -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let end = Instant::now() + self.0;
        let mut pause = Duration::from_millis(20);
        loop {
            match work().await {
                Err(Failed::Call(error)) if may_come(&error) && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (2 * pause).min(PAUSE);
                }
                done => return done,
            }
        }
    }
}

/// Whether a server is gone that may come back.
fn may_come(error: &CallError) -> bool {
    matches!(error.code(), Code::Unavailable | Code::Unfinished)
}

/// Calls in the name of this process's user, as the servers are to believe it.
///
/// # Errors
///
/// The system does not say who that is.
pub(crate) fn caller(endpoint: &Endpoint) -> anyhow::Result<Caller> {
    let user = AuthSys::of_this_process().context("this process has no user")?;
    let credential = xdr::encode(&user.credential()?)?;
    Ok(endpoint.caller().metadata_bin(CREDENTIAL, credential))
}

/// The root of what a server exports, and who asks it.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    server: Address,
    client: Client,
    pub(crate) root: NfsFh3,
    patience: Patience,
}

impl Export {
    /// Of the server behind the sidecar at this address.
    ///
    /// # Errors
    ///
    /// It is not there, or lets nobody in.
    pub(crate) async fn mount(
        caller: Caller,
        server: &Address,
        patience: Patience,
    ) -> anyhow::Result<Self> {
        let client = caller.at(server);
        let mounted = patience
            .wait_for(|| async { Ok(mount(&client).await?) })
            .await;
        match mounted {
            Ok(Mountres3::Mnt3Ok(mounted)) => {
                let data = mounted.fhandle.0;
                let root = NfsFh3 { data };
                Ok(Self {
                    server: server.clone(),
                    client,
                    root,
                    patience,
                })
            }
            Ok(Mountres3::Default(status)) => Err(anyhow!("{server} mounts nothing: {status:?}")),
            Err(failed) => Err(told(failed, server, "is not mounted")),
        }
    }

    pub(crate) fn server(&self) -> &Address {
        &self.server
    }

    /// A file of this name at the root, and what is known of it.
    pub(crate) async fn find(&self, name: &str) -> anyhow::Result<(NfsFh3, Fattr3)> {
        let found = self.patience.wait_for(|| self.lookup(name)).await;
        let found = found.map_err(|failed| self.told(failed, name))?;
        match found.obj_attributes {
            PostOpAttr::True(known) => Ok((found.object, known)),
            PostOpAttr::False => {
                let known = self.known(&found.object).await;
                Ok((found.object, known.with_context(|| name.to_owned())?))
            }
        }
    }

    async fn lookup(&self, name: &str) -> Result<LOOKUP3resok, Failed> {
        let what = self.named(name);
        let arguments = methods::Nfsproc3LookupArguments(LOOKUP3args { what });
        match self
            .client
            .call(&methods::NFSPROC3_LOOKUP, arguments)
            .await?
            .0
        {
            LOOKUP3res::Nfs3Ok(found) => Ok(found),
            LOOKUP3res::Default(status, _) => Err(Failed::Status(status)),
        }
    }

    /// What is known of a file.
    pub(crate) async fn known(&self, file: &NfsFh3) -> anyhow::Result<Fattr3> {
        let known = self.patience.wait_for(|| async {
            let object = file.clone();
            let arguments = methods::Nfsproc3GetattrArguments(GETATTR3args { object });
            match self
                .client
                .call(&methods::NFSPROC3_GETATTR, arguments)
                .await?
                .0
            {
                GETATTR3res::Nfs3Ok(known) => Ok(known.obj_attributes),
                GETATTR3res::Default(status) => Err(Failed::Status(status)),
            }
        });
        known.await.map_err(|failed| self.told(failed, "a file"))
    }

    /// A new file, of a name that no file has. What is there is not emptied: the server may do this again, late, when something is
    /// written already.
    pub(crate) async fn create(&self, name: &str, mode: u32) -> anyhow::Result<NfsFh3> {
        let created = self.patience.wait_for(|| async {
            let (at, how) = (self.named(name), Createhow3::Unchecked(with_mode(mode)));
            let arguments = methods::Nfsproc3CreateArguments(CREATE3args { r#where: at, how });
            match self
                .client
                .call(&methods::NFSPROC3_CREATE, arguments)
                .await?
                .0
            {
                CREATE3res::Nfs3Ok(CREATE3resok {
                    obj: PostOpFh3::True(file),
                    ..
                }) => Ok(file),
                CREATE3res::Nfs3Ok(_) => Ok(self.lookup(name).await?.object),
                CREATE3res::Default(status, _) => Err(Failed::Status(status)),
            }
        });
        created.await.map_err(|failed| self.told(failed, name))
    }

    /// The bytes at this place, at most so many: fewer at the end, and where the server likes.
    pub(crate) async fn read(&self, place: Place<'_>) -> Result<Bytes, Failed> {
        let arguments = methods::Nfsproc3ReadArguments(place.read());
        match self
            .client
            .call(&methods::NFSPROC3_READ, arguments)
            .await?
            .0
        {
            READ3res::Nfs3Ok(read) => Ok(read.data),
            READ3res::Default(status, _) => Err(Failed::Status(status)),
        }
    }

    /// How many of these bytes were written to stable storage.
    pub(crate) async fn write(
        &self,
        file: &NfsFh3,
        offset: u64,
        data: Bytes,
    ) -> Result<u32, Failed> {
        let arguments = methods::Nfsproc3WriteArguments(WRITE3args {
            file: file.clone(),
            offset,
            count: data.len() as u32, // a part of a file is short
            stable: StableHow::FileSync,
            data,
        });
        written(
            self.client
                .call(&methods::NFSPROC3_WRITE, arguments)
                .await?
                .0,
        )
    }

    /// Gives a file another name, in place of what has that name.
    pub(crate) async fn rename(&self, file: &NfsFh3, name: &str, to: &str) -> anyhow::Result<()> {
        let renamed = self.patience.wait_for(|| async {
            let (from, to) = (self.named(name), self.named(to));
            let arguments = methods::Nfsproc3RenameArguments(RENAME3args { from, to });
            match self
                .client
                .call(&methods::NFSPROC3_RENAME, arguments)
                .await?
                .0
            {
                RENAME3res::Nfs3Ok(_) => Ok(()),
                RENAME3res::Default(status, _) => Err(Failed::Status(status)),
            }
        });
        match renamed.await {
            // It may have been done by an attempt whose answer was lost.
            Err(Failed::Status(Nfsstat3::Nfs3errNoent)) if self.find(to).await?.0 == *file => {
                Ok(())
            }
            done => done.map_err(|failed| self.told(failed, to)),
        }
    }

    /// Removes a file that is of no use, if that can be done now.
    pub(crate) async fn remove(&self, name: &str) {
        let object = self.named(name);
        let arguments = methods::Nfsproc3RemoveArguments(REMOVE3args { object });
        // If it stays, it has a name that says what it is.
        let _ = self.client.call(&methods::NFSPROC3_REMOVE, arguments).await;
    }

    fn named(&self, name: &str) -> Diropargs3 {
        Diropargs3 {
            dir: self.root.clone(),
            name: interface::Filename3(name.into()),
        }
    }

    pub(crate) fn told(&self, failed: Failed, what: &str) -> anyhow::Error {
        told(failed, self.server(), what)
    }
}

/// Mounts the root of what a server exports.
pub(crate) async fn mount(client: &Client) -> Result<Mountres3, CallError> {
    let root = mounts::Mountproc3MntArguments(Dirpath("/".into()));
    Ok(client.call(&mounts::MOUNTPROC3_MNT, root).await?.0)
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a NfsFh3,
    pub(crate) offset: u64,
    pub(crate) count: u32,
}

impl Place<'_> {
    pub(crate) fn read(self) -> READ3args {
        READ3args {
            file: self.file.clone(),
            offset: self.offset,
            count: self.count,
        }
    }
}

/// How many bytes a server says that it has written.
pub(crate) fn written(answer: WRITE3res) -> Result<u32, Failed> {
    match answer {
        WRITE3res::Nfs3Ok(written) => Ok(written.count),
        WRITE3res::Default(status, _) => Err(Failed::Status(status)),
    }
}

/// A failure for people: at which server, with what. An error of a call names servers by itself, too.
pub(crate) fn told(failed: Failed, server: &Address, what: &str) -> anyhow::Error {
    match failed {
        Failed::Call(error) => {
            let at = error.server().unwrap_or(server).clone();
            anyhow::Error::new(error).context(format!("{at}: {what}"))
        }
        Failed::Status(status) => anyhow!("{server}: {what}: {status:?}"),
        Failed::Chain(error) => error.into(),
    }
}

fn with_mode(mode: u32) -> Sattr3 {
    Sattr3 {
        mode: SetMode3::True(mode),
        uid: SetUid3::Default(false),
        gid: SetGid3::Default(false),
        size: SetSize3::Default(false),
        atime: SetAtime::Default(TimeHow::DontChange),
        mtime: SetMtime::Default(TimeHow::DontChange),
    }
}
