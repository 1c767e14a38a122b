//! What a server of gRPC tells of its methods by its own reflection, so that `wallaby list` and `wallaby call` know them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use prost_types::FileDescriptorProto;
use tokio::time::sleep;
use wallaby::reflection::{Follows, Signature};
use wallaby::schema::{Schema, Shape};
use wallaby::{Code, Endpoint, MethodDefinition, Service, Status};

use crate::grpc::{Answers, Grpc};

/// The methods that tell, the newest first.
const METHODS: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most files of one server, and most bytes of them.
const MOST_FILES: usize = 512;
const MOST_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, optional, tag = "3")]
    file_by_filename: Option<String>,
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "7")]
    error: Option<Refusal>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Files that a server has told.
#[derive(Default)]
struct Known {
    files: BTreeMap<String, (FileDescriptorProto, Bytes)>,
    bytes: usize,
}

/// Serves the methods of a server under their names, when it has told them: asks every so often until it does.
pub(crate) async fn describe(grpc: Arc<Grpc>, endpoint: Endpoint, every: Duration) {
    let mut last = None;
    loop {
        let why = match methods(&grpc).await {
            Ok(service) => match endpoint.serve(service) {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            Err(status) => status.message().to_owned(),
        };
        if last.as_ref() != Some(&why) {
            tracing::warn!(server = %grpc.server, %why, "does not tell what its messages look like");
            last = Some(why);
        }
        sleep(every).await;
    }
}

/// The methods of its services, described.
async fn methods(grpc: &Arc<Grpc>) -> Result<Service, Status> {
    let mut served = Service::new("grpc");
    for service in &grpc.services {
        let mut known = Known::default();
        known.ask_all(grpc, service).await?;
        let descriptors = known.set();
        for file in known.files.values().map(|(file, _)| file) {
            let package = file.package();
            let own = file
                .service
                .iter()
                .find(|own| full_name(package, own.name()) == *service);
            for method in own.iter().flat_map(|own| &own.method) {
                // Who sends several requests has no way through a sidecar.
                let name = format!("{service}/{}", method.name());
                let definition = MethodDefinition::new(&name, "protobuf", 0, 0);
                let Some(definition) = definition.filter(|_| !method.client_streaming()) else {
                    continue;
                };
                let answers = match method.server_streaming() {
                    true => Answers::Many,
                    false => Answers::One,
                };
                let signature = Signature {
                    one: answers == Answers::One,
                    follows: Follows::Nothing,
                    arguments: Some(named(method.input_type())),
                    answer: Some(named(method.output_type())),
                };
                let grpc = Arc::clone(grpc);
                let handle = move |request| {
                    let grpc = Arc::clone(&grpc);
                    async move { grpc.handle(request, answers).await }
                };
                served =
                    served.described(Arc::new(definition), signature, descriptors.clone(), handle);
            }
        }
    }
    Ok(served)
}

fn full_name(package: &str, name: &str) -> String {
    match package {
        "" => name.to_owned(),
        package => format!("{package}.{name}"),
    }
}

/// A message by its name, which begins with a dot.
fn named(message: &str) -> Schema {
    Schema {
        root: Shape::Named(message.trim_start_matches('.').to_owned()),
        types: BTreeMap::new(),
    }
}

impl Known {
    /// Asks for the file that has a service, and for all that it needs.
    async fn ask_all(&mut self, grpc: &Grpc, service: &str) -> Result<(), Status> {
        let question = Question {
            file_containing_symbol: Some(service.to_owned()),
            ..Question::default()
        };
        self.ask(grpc, &question).await?;
        while let Some(missing) = self.missing() {
            let question = Question {
                file_by_filename: Some(missing.clone()),
                ..Question::default()
            };
            self.ask(grpc, &question).await?;
            if !self.files.contains_key(&missing) {
                let message = format!("it has been asked for {missing}, and has told another file");
                return Err(Status::internal(message));
            }
        }
        Ok(())
    }

    /// A file that another one needs.
    fn missing(&self) -> Option<String> {
        let needed = self.files.values().flat_map(|(file, _)| &file.dependency);
        let mut missing = needed.filter(|name| !self.files.contains_key(*name));
        missing.next().cloned()
    }

    async fn ask(&mut self, grpc: &Grpc, question: &Question) -> Result<(), Status> {
        let question = Bytes::from(question.encode_to_vec());
        let [newest, older] = METHODS;
        let told = match grpc.ask(newest, &question, PATIENCE).await {
            Err(status) if status.code() == Code::Unimplemented => {
                grpc.ask(older, &question, PATIENCE).await
            }
            told => told,
        };
        let unreadable = |error: prost::DecodeError| {
            Status::internal(format!("what it tells cannot be read: {error}"))
        };
        let told = Told::decode(told?).map_err(unreadable)?;
        if let Some(Refusal { message, .. }) = told.error {
            return Err(Status::not_found(message));
        }
        for bytes in told.files.unwrap_or_default().files {
            self.bytes += bytes.len();
            let file = FileDescriptorProto::decode(bytes.clone()).map_err(unreadable)?;
            self.files.insert(file.name().to_owned(), (file, bytes));
            if self.files.len() > MOST_FILES || self.bytes > MOST_BYTES {
                let message =
                    format!("it tells more than {MOST_FILES} files or {MOST_BYTES} bytes");
                return Err(Status::resource_exhausted(message));
            }
        }
        Ok(())
    }

    /// All files as a `FileDescriptorSet`: each behind those that it needs.
    fn set(&self) -> Bytes {
        let mut set = Vec::with_capacity(self.bytes + 8 * self.files.len());
        let mut left: Vec<&str> = self.files.keys().map(String::as_str).collect();
        while !left.is_empty() {
            let waits = |name: &&str, left: &[&str]| {
                let needed = self.files.get(*name).map(|(file, _)| &file.dependency);
                needed.is_some_and(|needed| needed.iter().any(|it| left.contains(&it.as_str())))
            };
            let (later, now): (Vec<&str>, Vec<&str>) =
                left.iter().partition(|name| waits(name, &left));
            // Files that need each other are nonsense; whoever reads them says so.
            let now = if now.is_empty() { later.clone() } else { now };
            for (_, bytes) in now.iter().filter_map(|name| self.files.get(*name)) {
                prost::encoding::bytes::encode(1, bytes, &mut set);
            }
            left.retain(|name| !now.contains(name));
        }
        set.into()
    }
}
