//! Programs as Rust code: for each version a client, a trait for servers, and what serves such a server.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use super::methods::methods;
use super::{Emitter, docs};
use crate::onc::model::{Form, Procedure, Program, Type, Version};
use crate::onc::naming;

/// No type has this index: arguments and results are never part of themselves.
pub(super) const NO_TYPE: usize = usize::MAX;

impl Emitter<'_> {
    pub(super) fn program(&self, program: &Program) -> TokenStream {
        let docs = docs(&program.docs, || {
            format!("Program `{}`, {}.", program.name, program.number)
        });
        let module = naming::identifier(&program.rust);
        let number = Literal::u32_unsuffixed(program.number);
        let versions = program
            .versions
            .iter()
            .map(|each| self.version(program, each));
        quote! {
            #docs
            pub mod #module {
                /// The program's number.
                pub const PROGRAM: u32 = #number;

                #(#versions)*
            }
        }
    }

    fn version(&self, program: &Program, version: &Version) -> TokenStream {
        let docs = docs(&version.docs, || {
            format!("Version `{}`, {}.", version.name, version.number)
        });
        let module = naming::identifier(&version.rust);
        let number = Literal::u32_unsuffixed(version.number);
        let constants = version.procedures.iter().map(|each| {
            let name = naming::identifier(&each.rust_number);
            let doc = format!(" The number of the procedure `{}`.", each.name);
            let number = Literal::u32_unsuffixed(each.number);
            quote!(#[doc = #doc] pub const #name: u32 = #number;)
        });
        let client = version.procedures.iter().map(|each| self.client(each));
        let server = version.procedures.iter().map(|each| self.server(each));
        let dispatch = version.procedures.iter().map(|each| self.dispatch(each));
        // rpcgen's servers answer procedure 0 of every program, and rpcinfo asks for it.
        let null = version.procedures.iter().all(|each| each.number != 0);
        let implied = null.then_some(0);
        let numbers = version.procedures.iter().map(|each| each.number);
        let numbers = implied
            .into_iter()
            .chain(numbers)
            .map(Literal::u32_unsuffixed);
        let null = null.then(|| quote!(0 => service::results(|_| Ok(())),));
        let methods = self.with_methods.then(|| methods(self, program, version));
        quote! {
            #docs
            pub mod #module {
                use ::std::future::Future;

                #[allow(unused_imports)]
                use super::super::*;

                pub use super::PROGRAM;

                /// The version's number.
                pub const VERSION: u32 = #number;

                #(#constants)*

                /// Calls the procedures of this version.
                #[derive(Clone, Debug)]
                pub struct Client<C>(pub C);

                impl<C: Channel> Client<C> {
                    #(#client)*
                }

                /// The procedures of this version, for a server.
                pub trait Server: Send + Sync {
                    #(#server)*
                }

                /// Serves this version, for [`Programs`](::wallaby_onc::Programs).
                #[derive(Clone, Debug)]
                pub struct Service<S>(pub S);

                impl<S: Server> ::wallaby_onc::Program for Service<S> {
                    const PROGRAM: u32 = PROGRAM;
                    const VERSION: u32 = VERSION;
                    const PROCEDURES: &'static [u32] = &[#(#numbers),*];

                    #[allow(unused_variables)]
                    async fn handle(
                        &self,
                        caller: &Principal,
                        procedure: u32,
                        arguments: Bytes,
                    ) -> Result<Bytes, Refusal> {
                        match procedure {
                            #null
                            #(#dispatch)*
                            _ => Err(AcceptError::ProcedureUnavailable.into()),
                        }
                    }
                }

                #methods
            }
        }
    }

    fn client(&self, procedure: &Procedure) -> TokenStream {
        let docs = procedure_docs(procedure);
        let lints = procedure_lints(procedure);
        let name = naming::identifier(&procedure.rust);
        let number = naming::identifier(&procedure.rust_number);
        let names = argument_names(procedure);
        let kinds = self.argument_kinds(procedure);
        let kinds = procedure
            .arguments
            .iter()
            .zip(kinds)
            .map(|((_, form), kind)| match form {
                Form::Plain(Type::Scalar(_)) => kind,
                Form::Array(..) | Form::List(_) => {
                    let element = form.element().map(|kind| self.type_name(kind));
                    quote!(&[#element])
                }
                _ => quote!(&#kind),
            });
        let forms = procedure.arguments.iter().zip(&names);
        let parts: Vec<_> = forms
            .map(|((_, form), name)| (form, quote!(#name), quote!(#name)))
            .collect();
        let encode = match &parts[..] {
            [] => quote!(|_| Ok(())),
            parts => {
                let encode = self.encode_all(parts);
                quote!(|writer| { #encode })
            }
        };
        let result = self.result(procedure);
        let decode = match &procedure.result {
            Some(form) => self.reader(NO_TYPE, form),
            None => quote!(<()>::decode),
        };
        quote! {
            #docs
            ///
            /// # Errors
            /// The call could not be made, was refused, or what came back is no answer.
            #lints
            pub async fn #name(&self, #(#names: #kinds),*) -> Result<#result, RpcError> {
                service::call(&self.0, (PROGRAM, VERSION, #number), #encode, #decode).await
            }
        }
    }

    fn server(&self, procedure: &Procedure) -> TokenStream {
        let docs = procedure_docs(procedure);
        let lints = procedure_lints(procedure);
        let name = naming::identifier(&procedure.rust);
        let names = argument_names(procedure);
        let kinds = self.argument_kinds(procedure);
        let result = self.result(procedure);
        quote! {
            #docs
            #lints
            fn #name(
                &self,
                caller: &Principal,
                #(#names: #kinds,)*
            ) -> impl Future<Output = Result<#result, Refusal>> + Send;
        }
    }

    fn dispatch(&self, procedure: &Procedure) -> TokenStream {
        let name = naming::identifier(&procedure.rust);
        let number = naming::identifier(&procedure.rust_number);
        let names = argument_names(procedure);
        let (pattern, decode) = match &procedure.arguments[..] {
            [] => (quote!(()), quote!(<()>::decode)),
            [(_, form)] => (quote!(#(#names)*), self.reader(NO_TYPE, form)),
            several => {
                let decode = several.iter().map(|(_, form)| self.decode(NO_TYPE, form));
                (quote!((#(#names),*)), quote!(|reader| Ok((#(#decode?),*))))
            }
        };
        let handle = quote!(Server::#name(&self.0, caller, #(#names),*).await?;);
        let respond = match &procedure.result {
            Some(form) => {
                let encode = self.encode_all(&[(form, quote!(result), quote!(&result))]);
                quote!(let result = #handle service::results(|writer| { #encode }))
            }
            None => quote!(#handle service::results(|_| Ok(()))),
        };
        quote! {
            #number => {
                let #pattern = service::arguments(arguments, #decode)?;
                #respond
            }
        }
    }

    fn argument_kinds(&self, procedure: &Procedure) -> Vec<TokenStream> {
        let forms = procedure.arguments.iter().map(|(_, form)| form);
        forms.map(|form| self.kind(NO_TYPE, form)).collect()
    }

    fn result(&self, procedure: &Procedure) -> TokenStream {
        match &procedure.result {
            Some(form) => self.kind(NO_TYPE, form),
            None => quote!(()),
        }
    }
}

pub(super) fn procedure_docs(procedure: &Procedure) -> TokenStream {
    docs(&procedure.docs, || {
        format!("`{}`, procedure {}.", procedure.name, procedure.number)
    })
}

fn argument_names(procedure: &Procedure) -> Vec<Ident> {
    let names = procedure.arguments.iter();
    names.map(|(name, _)| naming::identifier(name)).collect()
}

/// A procedure is called what the interface calls it, and has as many arguments as it says: lints are told so.
fn procedure_lints(procedure: &Procedure) -> TokenStream {
    let name = procedure.rust.as_str();
    let is_conventional = name == "new" || name.starts_with("from_") || name.starts_with("into_");
    let called = is_conventional
        .then(|| quote!(#[allow(clippy::new_ret_no_self, clippy::wrong_self_convention)]));
    // Beside them stand the receiver and who calls.
    let long = crate::emit::allow_long(procedure.arguments.len() + 2);
    quote!(#called #long)
}
