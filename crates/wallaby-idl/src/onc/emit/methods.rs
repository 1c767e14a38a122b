//! Procedures as methods of Wallaby: arguments and results as types of their own, and a `Method` for each.

use proc_macro2::TokenStream;
use quote::quote;

use super::Emitter;
use super::program::{NO_TYPE, procedure_docs};
use crate::onc::model::{Form, Procedure, Program, Version};
use crate::onc::naming;

/// The module `methods` of a version.
pub(super) fn methods(emitter: &Emitter<'_>, program: &Program, version: &Version) -> TokenStream {
    let types = emitter.model.types.iter().map(|known| &known.rust);
    let mut names = naming::Names::without(types);
    let procedures = version.procedures.iter();
    let methods: Vec<TokenStream> = procedures
        .map(|procedure| method(emitter, program, version, procedure, &mut names))
        .collect();
    quote! {
        /// The procedures of this version as methods of Wallaby, to be served, called and delegated one by one.
        pub mod methods {
            #[allow(unused_imports)]
            use super::super::super::*;

            #(#methods)*
        }
    }
}

fn method(
    emitter: &Emitter<'_>,
    program: &Program,
    version: &Version,
    procedure: &Procedure,
    names: &mut naming::Names,
) -> TokenStream {
    let docs = procedure_docs(procedure);
    let name = naming::identifier(&procedure.rust_number);
    // As `wallaby_onc::endpoint::method_name` has it.
    let wire = format!(
        "onc.{}.{}/{}",
        program.number, version.number, procedure.number
    );
    let forms: Vec<&Form> = procedure.arguments.iter().map(|(_, form)| form).collect();
    let arguments = tuple(emitter, procedure, names, "Arguments", &forms);
    let results: Vec<&Form> = procedure.result.iter().collect();
    let result = tuple(emitter, procedure, names, "Result", &results);
    let (arguments_type, result_type) = (&arguments.name, &result.name);
    let (arguments_code, result_code) = (&arguments.code, &result.code);
    quote! {
        #docs
        pub static #name: ::wallaby_onc::endpoint::Method<
            #arguments_type,
            ::wallaby_onc::endpoint::One<#result_type>,
            ::wallaby_onc::endpoint::XdrCodec,
        > = ::wallaby_onc::endpoint::Method::new(#wire);

        #arguments_code
        #result_code
    }
}

/// A type of values one after another, and its code.
struct Tuple {
    name: TokenStream,
    code: TokenStream,
}

fn tuple(
    emitter: &Emitter<'_>,
    procedure: &Procedure,
    names: &mut naming::Names,
    what: &str,
    forms: &[&Form],
) -> Tuple {
    if forms.is_empty() {
        return Tuple {
            name: quote!(()),
            code: TokenStream::new(),
        };
    }
    let name = names.take(format!("{}{what}", naming::camel_case(&procedure.name)));
    let name = naming::identifier(&name);
    let doc = format!(" The {} of `{}`.", what.to_lowercase(), procedure.name);
    let kinds = forms.iter().map(|form| emitter.kind(NO_TYPE, form));
    let parts = forms.iter().enumerate().map(|(at, form)| {
        let at = proc_macro2::Literal::usize_unsuffixed(at);
        (*form, quote!(self.#at), quote!(&self.#at))
    });
    let encode = emitter.encode_all(&parts.collect::<Vec<_>>());
    let decode = forms.iter().map(|form| emitter.decode(NO_TYPE, form));
    let code = quote! {
        #[doc = #doc]
        #[derive(Clone, Debug, PartialEq)]
        pub struct #name(#(pub #kinds),*);

        impl Xdr for #name {
            fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
                #encode
            }

            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                Ok(Self(#(#decode?),*))
            }
        }
    };
    Tuple {
        name: quote!(#name),
        code,
    }
}
