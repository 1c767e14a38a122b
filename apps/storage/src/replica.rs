//! A server whose files another one has as well: the primary. What changes files it has done by its own server of NFS, and then by
//! its backup. `WRITE` it answers by a chain of its own to the backup, which may become a part of the chain that has brought it here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use wallaby::codec::Codec;
use wallaby::{Address, Method, One, RawRequest, Request, Service, Status};
use wallaby_chain::pipe;
use wallaby_onc::endpoint::XdrCodec;

use crate::nfs::interface::{
    CREATE3args, CREATE3res, Diropargs3, LOOKUP3args, LOOKUP3res, Mountres3, PostOpFh3,
    REMOVE3args, REMOVE3res, RENAME3args, RENAME3res, StableHow, WRITE3args, WRITE3res,
};
use crate::nfs::{NfsFh3, methods, mounts};

/// Files of which it is known what the backup calls them. Of more, who used one long ago has to look it up anew.
const MOST_FILES: usize = 1 << 16;

/// What changes nothing, so that the own server alone does it: NULL, GETATTR, ACCESS, READLINK, READ, READDIR, READDIRPLUS, FSSTAT,
/// FSINFO, PATHCONF.
const READING: [&str; 10] = ["0", "1", "4", "5", "6", "16", "17", "18", "19", "20"];

/// A primary.
#[derive(Debug)]
pub(crate) struct Primary {
    own: Address,
    backup: Address,
    is_composed: bool,
    files: Mutex<Files>,
}

/// What the backup calls the files of the own server.
#[derive(Debug, Default)]
struct Files {
    known: HashMap<Bytes, Bytes>,
    /// From the oldest to the latest.
    order: VecDeque<Bytes>,
}

impl Files {
    fn insert(&mut self, own: Bytes, backup: Bytes) {
        if self.known.insert(own.clone(), backup).is_none() {
            self.order.push_back(own);
        }
        if self.order.len() > MOST_FILES
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// What an answer says: of which file, if it names one, or why nothing was done.
trait Outcome {
    fn outcome(&self) -> Result<Option<&Bytes>, String>;
}

macro_rules! outcomes {
    ($($answer:ty: $done:pat => $file:expr, $failed:pat => $why:expr;)*) => {$(
        impl Outcome for $answer {
            fn outcome(&self) -> Result<Option<&Bytes>, String> {
                match &self.0 {
                    $done => Ok($file),
                    $failed => Err(format!("{:?}", $why)),
                }
            }
        }
    )*};
}

outcomes! {
    mounts::Mountproc3MntResult: Mountres3::Mnt3Ok(root) => Some(&root.fhandle.0), Mountres3::Default(why) => why;
    methods::Nfsproc3LookupResult: LOOKUP3res::Nfs3Ok(found) => Some(&found.object.data), LOOKUP3res::Default(why, _) => why;
    methods::Nfsproc3CreateResult: CREATE3res::Nfs3Ok(new) => named(&new.obj), CREATE3res::Default(why, _) => why;
    methods::Nfsproc3RenameResult: RENAME3res::Nfs3Ok(_) => None, RENAME3res::Default(why, _) => why;
    methods::Nfsproc3RemoveResult: REMOVE3res::Nfs3Ok(_) => None, REMOVE3res::Default(why, _) => why;
}

/// Who is told no file here looks it up.
fn named(file: &PostOpFh3) -> Option<&Bytes> {
    match file {
        PostOpFh3::True(file) => Some(&file.data),
        PostOpFh3::False => None,
    }
}

impl Primary {
    /// Before the sidecar at `own`, with the one at `backup` as its backup. If it is composed, the chain to the backup is a part of the
    /// one that has brought a `WRITE`, which then goes on at the backup; if not, its end comes back here.
    pub(crate) fn service(own: Address, backup: Address, is_composed: bool) -> Service {
        let primary = &Arc::new(Self {
            own: own.clone(),
            backup,
            is_composed,
            files: Mutex::default(),
        });
        let service = Service::new("primary").catch_all(move |request: RawRequest| {
            let reads = request.method().rsplit_once('/');
            let reads = reads.is_some_and(|(_, number)| READING.contains(&number));
            let done = match reads {
                true => Ok(request.pass_on(&own)),
                false => Err(Status::unimplemented(format!(
                    "{} is not done at the backup as well",
                    request.method()
                ))),
            };
            async move { Ok(done?.await?) }
        });
        let writing = Arc::clone(primary);
        let service = service.method(&methods::NFSPROC3_WRITE, move |request, arguments| {
            let primary = Arc::clone(&writing);
            async move { primary.write(request, arguments).await }
        });
        let service = Self::twice(service, primary, &mounts::MOUNTPROC3_MNT, |_, path| {
            Ok(path.clone())
        });
        let service = Self::twice(
            service,
            primary,
            &methods::NFSPROC3_LOOKUP,
            |primary, asked| {
                let what = primary.named_at_backup(&asked.0.what)?;
                Ok(methods::Nfsproc3LookupArguments(LOOKUP3args { what }))
            },
        );
        let service = Self::twice(
            service,
            primary,
            &methods::NFSPROC3_CREATE,
            |primary, asked| {
                let (at, how) = (
                    primary.named_at_backup(&asked.0.r#where)?,
                    asked.0.how.clone(),
                );
                Ok(methods::Nfsproc3CreateArguments(CREATE3args {
                    r#where: at,
                    how,
                }))
            },
        );
        let service = Self::twice(
            service,
            primary,
            &methods::NFSPROC3_RENAME,
            |primary, asked| {
                let from = primary.named_at_backup(&asked.0.from)?;
                let to = primary.named_at_backup(&asked.0.to)?;
                Ok(methods::Nfsproc3RenameArguments(RENAME3args { from, to }))
            },
        );
        Self::twice(
            service,
            primary,
            &methods::NFSPROC3_REMOVE,
            |primary, asked| {
                let object = primary.named_at_backup(&asked.0.object)?;
                Ok(methods::Nfsproc3RemoveArguments(REMOVE3args { object }))
            },
        )
    }

    /// A method that both servers do, the backup with the arguments that `at_backup` makes.
    fn twice<Args, R>(
        service: Service,
        primary: &Arc<Self>,
        method: &'static Method<Args, One<R>, XdrCodec>,
        at_backup: fn(&Self, &Args) -> Result<Args, Status>,
    ) -> Service
    where
        Args: Send + 'static,
        R: Outcome + Send + 'static,
        XdrCodec: Codec<Args> + Codec<R>,
    {
        let primary = Arc::clone(primary);
        service.method(
            method,
            move |request: Request<One<R>, XdrCodec>, own: Args| {
                let primary = Arc::clone(&primary);
                async move {
                    let backup = at_backup(&primary, &own)?;
                    let own = request.call().at(&primary.own).call(method, own);
                    let backup = request.call().at(&primary.backup).call(method, backup);
                    let (own, backup) = tokio::try_join!(own.into_future(), backup.into_future())?;
                    match (own.outcome(), backup.outcome()) {
                        (Ok(Some(own)), Ok(Some(backup))) => {
                            primary.files().insert(own.clone(), backup.clone())
                        }
                        (Ok(_), Err(why)) => {
                            let why = format!("the backup at {} says {why}", primary.backup);
                            return Err(Status::failed_precondition(why));
                        }
                        _ => {}
                    }
                    Ok(request.respond(own).await?)
                }
            },
        )
    }

    async fn write(
        &self,
        request: Request<One<methods::Nfsproc3WriteResult>, XdrCodec>,
        methods::Nfsproc3WriteArguments(arguments): methods::Nfsproc3WriteArguments,
    ) -> Result<(), Status> {
        let at_backup = self.at_backup(&arguments.file)?;
        // Nobody asks a server later whether it has kept what it was given.
        let mut arguments = WRITE3args {
            stable: StableHow::FileSync,
            ..arguments
        };
        let own = methods::Nfsproc3WriteArguments(arguments.clone());
        let own = request
            .call()
            .at(&self.own)
            .call(&methods::NFSPROC3_WRITE, own)
            .await?;
        let WRITE3res::Nfs3Ok(written) = &own.0 else {
            return Ok(request.respond(own).await?);
        };
        arguments.count = written.count;
        arguments.data.truncate(written.count as usize);
        arguments.file = at_backup;
        let arguments = methods::Nfsproc3WriteArguments(arguments);
        let chain = pipe(&self.backup, &methods::NFSPROC3_WRITE, arguments);
        if self.is_composed {
            return Ok(chain.forward(request)?.await?);
        }
        let answer = chain.call(request.call())?.await?;
        Ok(request.respond(answer).await?)
    }

    fn at_backup(&self, file: &NfsFh3) -> Result<NfsFh3, Status> {
        let data = self.files().known.get(&file.data).cloned();
        let data = data.ok_or_else(|| {
            Status::not_found("the primary does not know this file any more: look it up anew")
        })?;
        Ok(NfsFh3 { data })
    }

    fn named_at_backup(&self, named: &Diropargs3) -> Result<Diropargs3, Status> {
        Ok(Diropargs3 {
            dir: self.at_backup(&named.dir)?,
            name: named.name.clone(),
        })
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
