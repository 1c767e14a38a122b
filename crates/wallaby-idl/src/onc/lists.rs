//! Linked lists, found where they are meant.
//!
//! Interface files have no list but a struct whose last field points to the next such struct. On the wire that is each
//! element announced by a 1, then a 0; so where a struct is used for nothing else, its values are kept in a `Vec`, and a
//! list of a million elements needs no million levels of values within values.

use super::model::{Form, Model, Shape, Type};

/// Turns structs that are links into elements of lists.
pub(super) fn find(model: &mut Model) {
    let links: Vec<usize> = (0..model.types.len())
        .filter(|&at| is_link(model, at))
        .collect();
    for at in &links {
        if let Shape::Struct(fields) = &mut model.types[*at].shape {
            fields.pop();
        }
    }
    let forms = model
        .types
        .iter_mut()
        .flat_map(|known| known.shape.forms_mut());
    let procedures = model
        .programs
        .iter_mut()
        .flat_map(|program| &mut program.versions)
        .flat_map(|version| &mut version.procedures);
    let procedures = procedures.flat_map(|procedure| {
        let arguments = procedure.arguments.iter_mut().map(|(_, form)| form);
        arguments.chain(procedure.result.as_mut())
    });
    for form in forms.chain(procedures) {
        if let Form::Optional(Type::Defined(at)) = form
            && links.contains(at)
        {
            *form = Form::List(Type::Defined(*at));
        }
    }
}

/// Whether the struct's last field alone leads on to the next one, and nothing refers to it but such pointers.
fn is_link(model: &Model, at: usize) -> bool {
    let Shape::Struct(fields) = &model.types[at].shape else {
        return false;
    };
    let pointer = Form::Optional(Type::Defined(at));
    // Either a pointer itself, or the name of one.
    let leads_on = |form: &Form| match form {
        Form::Plain(Type::Defined(other)) => {
            matches!(&model.types[*other].shape, Shape::Typedef(named) if *named == pointer)
        }
        form => *form == pointer,
    };
    let own = fields.iter().filter(|field| leads_on(&field.form)).count();
    let is_last = fields.last().is_some_and(|field| leads_on(&field.form));
    let mut all = model.forms();
    let is_only_pointed_to =
        all.all(|form| form.element() != Some(&Type::Defined(at)) || *form == pointer);
    fields.len() > 1 && own == 1 && is_last && is_only_pointed_to
}
