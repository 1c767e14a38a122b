//! Whether a service of a `.proto` file can be one of Wallaby.

use std::collections::HashMap;

use prost_build::{Method, Service};
use prost_types::FileDescriptorProto;
use wallaby_idl::tree::{Answer, Argument, Attributes, Interface, Name, Place, Type};

use crate::error::Diagnostic;

/// Names that mean something else where the types of a method stand.
const TAKEN: [&str; 4] = ["Body", "Many", "One", "Streaming"];

/// Those of `google.protobuf` that know their names, so that methods can have them.
const WELL_KNOWN: [&str; 13] = [
    "Any",
    "BoolValue",
    "BytesValue",
    "DoubleValue",
    "Duration",
    "Empty",
    "FloatValue",
    "Int32Value",
    "Int64Value",
    "StringValue",
    "Timestamp",
    "UInt32Value",
    "UInt64Value",
];

/// Where services and methods stand in their files, by their full names.
#[derive(Debug, Default)]
pub(crate) struct Places(HashMap<String, String>);

impl Places {
    /// `place` says the path of a file.
    pub(crate) fn of(files: &[FileDescriptorProto], place: &dyn Fn(&str) -> String) -> Self {
        let mut places = HashMap::new();
        for file in files {
            let path = place(file.name());
            let locations = file.source_code_info.iter().flat_map(|info| &info.location);
            let lines: HashMap<&[i32], &[i32]> = locations
                .map(|location| (&location.path[..], &location.span[..]))
                .collect();
            let at = |item: &[i32]| match lines.get(item) {
                Some([line, column, ..]) => format!("{path}:{}:{}", line + 1, column + 1),
                _ => path.clone(),
            };
            for (index, service) in (0..).zip(&file.service) {
                let name = format!("{}.{}", file.package(), service.name());
                for (method_index, method) in (0..).zip(&service.method) {
                    let name = format!("{name}/{}", method.name());
                    places.insert(name, at(&[6, index, 2, method_index]));
                }
                places.insert(name, at(&[6, index]));
            }
        }
        Self(places)
    }

    fn at(&self, service: &Service, method: Option<&Method>) -> String {
        let name = match method {
            Some(method) => format!(
                "{}.{}/{}",
                service.package, service.proto_name, method.proto_name
            ),
            None => format!("{}.{}", service.package, service.proto_name),
        };
        self.0.get(&name).cloned().unwrap_or(name)
    }
}

/// What is wrong with a service.
pub(crate) fn flaws(service: &Service, places: &Places) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut wrong = |method: Option<&Method>, message: String| {
        let name = match method {
            Some(method) => format!("method {}/{}", service.proto_name, method.proto_name),
            None => format!("service {}", service.proto_name),
        };
        found.push(Diagnostic {
            place: places.at(service, method),
            message: format!("{name}: {message}"),
        });
    };
    if service.package.is_empty() {
        let message = "expected `package name;` in the file: peers know a service by its package and its name";
        wrong(None, message.into());
    }
    for method in &service.methods {
        for (proto, rust) in [
            (&method.input_proto_type, &method.input_type),
            (&method.output_proto_type, &method.output_type),
        ] {
            if let Some(message) = type_flaw(proto, rust) {
                wrong(Some(method), message);
            }
        }
    }
    match interface(service) {
        Ok(interface) => {
            for flaw in interface.flaws() {
                let method = match flaw.place {
                    Place::Method(at) | Place::Argument(at, _) => service.methods.get(at),
                    Place::Package | Place::Name => None,
                };
                // The package is missing, which is said already.
                if !(service.package.is_empty() && flaw.place == Place::Package) {
                    wrong(method, flaw.message);
                }
            }
        }
        Err(error) => wrong(None, format!("it has no names in Rust: {error}")),
    }
    found
}

fn type_flaw(proto: &str, rust: &str) -> Option<String> {
    let name = proto.trim_start_matches('.');
    if let Some(known) = name.strip_prefix("google.protobuf.") {
        return (!WELL_KNOWN.contains(&known)).then(|| {
            format!(
                "expected a message that knows its name: put `{name}` into a message of its own"
            )
        });
    }
    let last = rust.rsplit("::").next().unwrap_or(rust);
    TAKEN.contains(&last).then(|| {
        format!("expected a message with another name: as the type of a method `{last}` means something else in Rust")
    })
}

/// The service as far as its names go.
fn interface(service: &Service) -> syn::Result<Interface> {
    let methods = service.methods.iter().map(|method| {
        let argument = Argument {
            name: syn::parse_str("message")?,
            kind: Type::parse(&method.input_type)?,
        };
        Ok(wallaby_idl::tree::Method {
            name: Name::new(syn::parse_str(&method.name)?),
            attributes: Attributes::default(),
            arguments: vec![argument],
            stream: None,
            answer: Answer::one(Type::parse(&method.output_type)?),
        })
    });
    Ok(Interface {
        package: Some(service.package.clone()),
        name: Name::new(syn::parse_str(&service.name)?),
        visibility: syn::Visibility::Inherited,
        attributes: Attributes::default(),
        codec: None,
        framework: None,
        methods: methods.collect::<syn::Result<_>>()?,
    })
}
