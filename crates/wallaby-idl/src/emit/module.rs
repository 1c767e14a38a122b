//! The module beside a server trait: what callers, delegators and the endpoint that serves it need.

use std::fmt;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use super::{answer_type, at, handling, local, of_method, served, stream_type};
use crate::framework::Framework;
use crate::names;
use crate::nesting::{self, IntoModule};
use crate::tree::{Attributes, Interface, Method, RESERVED_METHODS, Stream, Type};

/// Types that the module defines or that are parameters there, as far as they are no method's.
const OWN_TYPES: [&str; 3] = ["Client", "Requests", "Server"];

/// The module of this name for the interface.
pub(super) fn emit(interface: &Interface, name: &Ident, outside: &Framework) -> TokenStream {
    let mut nesting = into_module(interface);
    let framework = outside.moved(&nesting);
    let codec = interface
        .codec
        .as_ref()
        .map(|codec| nesting.moved(codec.syntax()));
    let methods = interface.methods.iter().map(|method| ModuleMethod {
        method,
        name: &method.name.rust,
        constant: method.constant(),
        names: method
            .arguments
            .iter()
            .map(|argument| &argument.name)
            .collect(),
        types: method
            .arguments
            .iter()
            .map(|argument| nesting.moved(argument.kind.syntax()))
            .collect(),
        answer: nesting.moved(&answer_type(&method.answer, outside)),
        stream: method.stream.as_ref().map(|stream| {
            let codec = interface.codec.as_ref().map(Type::syntax);
            let received = nesting.moved(&stream_type(stream, codec, outside));
            let given = given(stream, codec, &framework, &mut nesting);
            ModuleStream {
                name: &stream.name,
                received,
                given,
            }
        }),
        codec: codec.as_ref(),
    });
    let methods = methods.collect();
    let visibility = nesting::visibility(&interface.visibility);
    Module {
        interface,
        name,
        framework: &framework,
        visibility,
        methods,
    }
    .emit()
}

/// What the module defines, as far as it could hide what a type of the user's refers to.
fn into_module(interface: &Interface) -> IntoModule {
    let constants = interface
        .methods
        .iter()
        .map(|method| method.constant().to_string());
    let own = OWN_TYPES.into_iter().chain(["SERVICE"]).map(String::from);
    let functions = interface
        .methods
        .iter()
        .map(|method| names::plain(&method.name.rust));
    IntoModule {
        types_and_constants: constants.chain(own).collect(),
        functions: functions
            .chain(RESERVED_METHODS.map(String::from))
            .collect(),
    }
}

struct Module<'a> {
    interface: &'a Interface,
    name: &'a Ident,
    /// As it is written in the module.
    framework: &'a Framework,
    /// Makes what stands in the module as visible as the server trait is: a `pub` item of a private module could not
    /// name private types everywhere.
    visibility: syn::Visibility,
    methods: Vec<ModuleMethod<'a>>,
}

/// A method with its types as they are written in the module.
struct ModuleMethod<'a> {
    method: &'a Method,
    name: &'a Ident,
    constant: Ident,
    names: Vec<&'a Ident>,
    types: Vec<syn::Type>,
    answer: syn::Type,
    stream: Option<ModuleStream<'a>>,
    codec: Option<&'a syn::Type>,
}

/// A stream with its types as they are written in the module.
struct ModuleStream<'a> {
    name: &'a Ident,
    /// What the handler gets.
    received: syn::Type,
    /// What a caller gives.
    given: TokenStream,
}

/// What a caller gives for a stream.
fn given(
    stream: &Stream,
    codec: Option<&syn::Type>,
    framework: &Framework,
    nesting: &mut IntoModule,
) -> TokenStream {
    let Some(item) = &stream.item else {
        return quote!(impl ::core::convert::Into<#framework::Body>);
    };
    let item = nesting.moved(item.syntax());
    let codec = codec.map(|codec| nesting.moved(codec));
    let codec = codec.map(|codec| quote!(, #codec));
    quote!(impl #framework::IntoStreaming<#item #codec>)
}

impl Module<'_> {
    fn emit(&self) -> TokenStream {
        let name = self.name;
        let visibility = &self.interface.visibility;
        let attributes = &self.interface.attributes;
        let docs = documentation(
            format!(
                "Client, delegation targets and registration of the service [`{}`].",
                self.service_name()
            ),
            attributes,
        );
        let attributes = conditions_and_notices(attributes);
        let constants = self.constants();
        let client = self.client();
        let targets = self.methods.iter().map(|method| self.target(method));
        let service = self.service();
        let shared = self.shared_server();
        let requests = self.requests();
        quote! {
            #docs #attributes
            #[allow(
                clippy::all,
                clippy::pedantic,
                dead_code,
                deprecated,
                unused_imports,
                unused_qualifications,
                reason = "everything in here is generated, and not every program uses all of it"
            )]
            #visibility mod #name {
                use super::*;

                #constants
                #client
                #(#targets)*
                #service
                #shared
                #requests
            }
        }
    }

    fn service_name(&self) -> String {
        names::plain(&self.interface.name.rust)
    }

    /// The full name with `suffix`, as an expression: the package may be known to the compiler only.
    fn full_name(&self, suffix: impl fmt::Display) -> TokenStream {
        let name = &self.interface.name.wire;
        match &self.interface.package {
            Some(package) => {
                let full = format!("{package}.{name}{suffix}");
                quote!(#full)
            }
            None => {
                let rest = format!(".{name}{suffix}");
                quote!(::core::concat!(::core::env!("CARGO_PKG_NAME"), #rest))
            }
        }
    }

    /// The service's name and the descriptions of its methods.
    fn constants(&self) -> TokenStream {
        let (visibility, framework) = (&self.visibility, self.framework);
        let full = self.full_name("");
        let methods = self.methods.iter().map(|method| {
            let ModuleMethod {
                constant,
                types,
                answer,
                codec,
                ..
            } = method;
            let conditions = &method.method.attributes.conditions;
            let wire = &method.method.name.wire;
            let docs = doc(format!("The method `{wire}` of the service."));
            let parameters = match (codec, &method.stream) {
                (codec, None) => codec.map(|codec| quote!(, #codec)),
                (None, Some(stream)) => {
                    let received = &stream.received;
                    Some(quote!(, #framework::codec::Postcard, #received))
                }
                (Some(codec), Some(stream)) => {
                    let received = &stream.received;
                    Some(quote!(, #codec, #received))
                }
            };
            let full = self.full_name(format_args!("/{wire}"));
            quote! {
                #(#conditions)*
                #docs
                #visibility static #constant: #framework::Method<(#(#types,)*), #answer #parameters> =
                    #framework::Method::new(#full);
            }
        });
        quote! {
            /// The name of the service, with its package.
            #visibility const SERVICE: &::core::primitive::str = #full;
            #(#methods)*
        }
    }

    fn client(&self) -> TokenStream {
        let visibility = &self.visibility;
        let docs = doc(format!(
            "Calls the methods of [`{}`] at one server.",
            self.service_name()
        ));
        let methods = self.methods.iter().map(|method| self.client_method(method));
        let options = self.client_options();
        let framework = self.framework;
        let advice = doc(format!(
            "on a [`wallaby::Client`]({framework}::Client) and pass that to [`within`]."
        ));
        let (endpoint, server, client) = (local("endpoint"), local("server"), local("client"));
        quote! {
            #docs
            ///
            /// A method may have the name of one of the options below and takes its place then: set such an option
            #advice
            #[derive(::core::clone::Clone, ::core::fmt::Debug)]
            #[must_use = "a client does nothing until one of its methods is called"]
            #visibility struct Client {
                client: #framework::Client,
            }

            /// A client of the service at the address `server`, whose calls `endpoint` makes.
            #visibility fn at(
                #endpoint: &#framework::Endpoint,
                #server: impl #framework::IntoAddress,
            ) -> Client {
                within(#framework::Client::new(#endpoint, #server))
            }

            /// A client of the service whose calls are made by `client`: with its server and its options.
            #visibility fn within(#client: #framework::Client) -> Client {
                Client { client: #client }
            }

            impl Client {
                #(#methods)*
                #(#options)*
            }
        }
    }

    fn client_method(&self, method: &ModuleMethod<'_>) -> TokenStream {
        let ModuleMethod {
            name,
            constant,
            names,
            types,
            ..
        } = method;
        let (visibility, framework) = (&self.visibility, self.framework);
        let attributes = self.function_attributes("Calls", method);
        let call = method.with_types(quote!(#framework::Call));
        if let Some(ModuleStream {
            name: stream,
            given,
            ..
        }) = &method.stream
        {
            return quote_spanned! {at(name)=>
                #attributes
                #visibility fn #name(&self, #(#names: #types,)* #stream: #given) -> #call {
                    self.client.call_target(#constant.target((#(#names,)*), #stream))
                }
            };
        }
        quote_spanned! {at(name)=>
            #attributes
            #visibility fn #name(&self, #(#names: #types),*) -> #call {
                self.client.call(&#constant, (#(#names,)*))
            }
        }
    }

    /// The options of a client, without those whose name a method has.
    fn client_options(&self) -> impl Iterator<Item = TokenStream> {
        let (visibility, framework) = (&self.visibility, self.framework);
        let (time, text) = (
            quote!(::core::time::Duration),
            quote!(&::core::primitive::str),
        );
        let servers = quote! {
            impl ::core::iter::IntoIterator<Item = impl ::core::convert::Into<#framework::Address>>
        };
        let bytes = quote!(impl ::core::convert::Into<#framework::__private::Bytes>);
        let options = [
            (
                "options",
                vec![("options", quote!(#framework::CallOptions))],
            ),
            ("deadline", vec![("after", time.clone())]),
            ("traced", vec![]),
            (
                "metadata",
                vec![("key", text.clone()), ("value", text.clone())],
            ),
            (
                "metadata_bin",
                vec![("key", text), ("value", bytes.clone())],
            ),
            ("continuation", vec![("bytes", bytes)]),
            ("durable", vec![("id", quote!(#framework::DurableId))]),
            ("fail_fast", vec![]),
            ("tolerant", vec![]),
            ("in_order", vec![]),
            ("budgets", vec![("budgets", quote!(#framework::Budgets))]),
            (
                "ping",
                vec![("period", time.clone()), ("timeout", time.clone())],
            ),
            (
                "heartbeats",
                vec![("heartbeats", quote!(#framework::Heartbeats))],
            ),
            ("stall_limit", vec![("limit", time)]),
            ("retry", vec![("retry", quote!(#framework::Retry))]),
            (
                "retry_budget",
                vec![("budget", quote!(#framework::RetryBudget))],
            ),
            ("hedge", vec![("hedge", quote!(#framework::Hedge))]),
            ("alternates", vec![("servers", servers)]),
            ("resend", vec![("resend", quote!(#framework::Resend))]),
        ];
        let code = move |name: &str, arguments: Vec<(&str, TokenStream)>| {
            let doc = format!(" As [`Client::{name}`]({framework}::Client::{name}).");
            let name = format_ident!("{name}");
            let (names, types): (Vec<_>, Vec<_>) = (arguments.into_iter())
                .map(|(name, of)| (format_ident!("{name}"), of))
                .unzip();
            quote! {
                #[doc = #doc]
                #visibility fn #name(self, #(#names: #types),*) -> Self {
                    within(self.client.#name(#(#names),*))
                }
            }
        };
        let is_taken = |option: &str| {
            self.methods
                .iter()
                .any(|method| names::plain(method.name) == option)
        };
        options
            .into_iter()
            .filter(move |(name, _)| !is_taken(name))
            .map(move |(name, arguments)| code(name, arguments))
    }

    fn target(&self, method: &ModuleMethod<'_>) -> TokenStream {
        let ModuleMethod {
            name,
            constant,
            names,
            types,
            ..
        } = method;
        let (visibility, framework) = (&self.visibility, self.framework);
        let attributes = self.function_attributes("The delegation target", method);
        let target = method.with_types(quote!(#framework::Target));
        if let Some(ModuleStream {
            name: stream,
            given,
            ..
        }) = &method.stream
        {
            return quote_spanned! {at(name)=>
                #attributes
                #visibility fn #name(#(#names: #types,)* #stream: #given) -> #target {
                    #constant.target((#(#names,)*), #stream)
                }
            };
        }
        quote_spanned! {at(name)=>
            #attributes
            #visibility fn #name(#(#names: #types),*) -> #target {
                #constant.target((#(#names,)*))
            }
        }
    }

    /// The attributes of a function that stands for a method.
    fn function_attributes(&self, headline: &str, method: &ModuleMethod<'_>) -> TokenStream {
        let attributes = &method.method.attributes;
        let headline = format!(
            "{headline} [`{}::{}`].",
            self.service_name(),
            names::plain(method.name)
        );
        let docs = documentation(headline, attributes);
        let attributes = conditions_and_notices(attributes);
        quote!(#docs #attributes)
    }

    /// The function that registers a server.
    fn service(&self) -> TokenStream {
        let (visibility, framework) = (&self.visibility, self.framework);
        let interface = &self.interface.name.rust;
        let (server, service, request) = (local("server"), local("service"), local("request"));
        let registrations = self.methods.iter().map(|ModuleMethod { method, name, constant, names, stream, .. }| {
            let conditions = &method.attributes.conditions;
            if let Some(ModuleStream { name: stream, .. }) = stream {
                return quote_spanned! {at(name)=>
                    #(#conditions)*
                    let #service = {
                        let #server = ::std::sync::Arc::clone(&#server);
                        #service.streaming_method(&#constant, move |#request, (#(#names,)*), #stream| {
                            let #server = ::std::sync::Arc::clone(&#server);
                            async move {
                                super::#interface::#name(&#server, #request, #(#names,)* #stream).await
                            }
                        })
                    };
                };
            }
            quote_spanned! {at(name)=>
                #(#conditions)*
                let #service = {
                    let #server = ::std::sync::Arc::clone(&#server);
                    #service.method(&#constant, move |#request, (#(#names,)*)| {
                        let #server = ::std::sync::Arc::clone(&#server);
                        async move { super::#interface::#name(&#server, #request, #(#names),*).await }
                    })
                };
            }
        });
        quote! {
            /// The service as `server` implements it, to be passed to an endpoint.
            ///
            /// A server that is needed elsewhere too can be passed in an [`Arc`](::std::sync::Arc).
            #[must_use = "a service answers nothing until an endpoint serves it"]
            #visibility fn service<Server: super::#interface>(#server: Server) -> #framework::Service {
                let #server = ::std::sync::Arc::new(#server);
                let #service = #framework::Service::new(SERVICE);
                #(#registrations)*
                #service
            }
        }
    }

    /// The server trait for a shared server: one state can serve several services, or be looked at from outside.
    fn shared_server(&self) -> TokenStream {
        let interface = &self.interface.name.rust;
        let request = local("request");
        let handling = handling(self.framework, Span::call_site());
        let methods = self.methods.iter().map(|ModuleMethod { method, name, names, types, stream, .. }| {
            let conditions = &method.attributes.conditions;
            let stream = stream.iter();
            let (last_names, last_types): (Vec<_>, Vec<_>) =
                stream.map(|stream| (stream.name, &stream.received)).unzip();
            let names: Vec<_> = names.iter().copied().chain(last_names).collect();
            let types: Vec<_> = types.iter().chain(last_types).collect();
            quote_spanned! {at(name)=>
                #(#conditions)*
                fn #name(self: &::std::sync::Arc<Self>, #request: Self::#name, #(#names: #types,)*) -> #handling {
                    <Server as super::#interface>::#name(self, #request, #(#names),*)
                }
            }
        });
        let served = served();
        quote! {
            impl<Server: super::#interface> super::#interface for ::std::sync::Arc<Server> {
                const #served: () = ();
                #(#methods)*
            }
        }
    }

    /// The type of each method's request, under the method's name. As a supertrait of the server trait it lets
    /// `#[wallaby::serve]` name a type that it cannot see: `Self::lookup`.
    fn requests(&self) -> TokenStream {
        let (visibility, framework) = (&self.visibility, self.framework);
        let types = self
            .methods
            .iter()
            .map(|ModuleMethod { method, name, .. }| {
                let conditions = &method.attributes.conditions;
                let docs = doc(format!("The request of the method `{}`.", method.name.wire));
                quote!(#(#conditions)* #docs type #name;)
            });
        let definitions = self.methods.iter().map(|method| {
            let (name, conditions) = (method.name, &method.method.attributes.conditions);
            let request = method.with_types(quote!(#framework::Request));
            quote_spanned!(at(name)=> #(#conditions)* type #name = #request;)
        });
        quote! {
            /// The type of the request that a handler gets, for each method by its name. Every type implements this.
            #[allow(non_camel_case_types, reason = "the types have the names of the methods")]
            #visibility trait Requests {
                #(#types)*
            }

            impl<Server: ?::core::marker::Sized> Requests for Server {
                #(#definitions)*
            }
        }
    }
}

impl ModuleMethod<'_> {
    /// A generic type of the framework, with the answer and the codec of this method.
    fn with_types(&self, generic: TokenStream) -> TokenStream {
        of_method(generic, &self.answer, self.codec)
    }
}

fn conditions_and_notices(attributes: &Attributes) -> TokenStream {
    let Attributes {
        conditions,
        notices,
        ..
    } = attributes;
    quote!(#(#conditions)* #(#notices)*)
}

/// A line on what this is, and what the user says of the service or method.
fn documentation(headline: impl fmt::Display, attributes: &Attributes) -> TokenStream {
    let docs = &attributes.docs;
    let headline = doc(headline);
    let gap = (!docs.is_empty()).then(|| quote!(#[doc = ""]));
    quote!(#headline #gap #(#docs)*)
}

/// A line of documentation, indented as the user's own is.
fn doc(line: impl fmt::Display) -> TokenStream {
    let line = format!(" {line}");
    quote!(#[doc = #line])
}
