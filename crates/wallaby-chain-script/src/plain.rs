//! What scripts do with texts, arrays and maps. Rhai's own packages for that are not used: some of their functions look at how much
//! they make when it is made, and those that take functions count no steps of these.

use rhai::{
    Array, Dynamic, EvalAltResult, ImmutableString, Map, Module, NativeCallContext, Position,
};

type Made<T> = Result<T, Box<EvalAltResult>>;

/// Maps and arrays may be so deep inside each other.
const DEPTH: usize = 64;

fn too_large<T>(what: &str) -> Made<T> {
    let error = EvalAltResult::ErrorDataTooLarge(what.to_owned(), Position::NONE);
    Err(error.into())
}

/// A text of so many bytes may be made.
fn text_of(cx: &NativeCallContext<'_>, bytes: Option<usize>) -> Made<usize> {
    match bytes.filter(|bytes| *bytes <= cx.engine().max_string_size()) {
        Some(bytes) => Ok(bytes),
        None => too_large("Length of string"),
    }
}

/// An array of so many elements, each of which holds so many others, may be made.
fn array_of(cx: &NativeCallContext<'_>, elements: usize, each: &Dynamic) -> Made<usize> {
    let all = elements.checked_mul(elements_of(each));
    match all.filter(|all| *all <= cx.engine().max_array_size()) {
        Some(_) => Ok(elements),
        None => too_large("Size of array"),
    }
}

/// A value, and those that are in it.
fn elements_of(value: &Dynamic) -> usize {
    if let Ok(array) = value.as_array_ref() {
        return 1 + array.iter().map(elements_of).sum::<usize>();
    }
    match value.as_map_ref() {
        Ok(map) => 1 + map.values().map(elements_of).sum::<usize>(),
        Err(_) => 1,
    }
}

/// Bytes of the names in maps, which Rhai does not count; `None` if they are too deep inside each other.
pub(crate) fn names_of(value: &Dynamic, depth: usize) -> Option<usize> {
    if depth > DEPTH {
        return None;
    }
    if let Ok(array) = value.as_array_ref() {
        return array.iter().map(|value| names_of(value, depth + 1)).sum();
    }
    match value.as_map_ref() {
        Ok(map) => (map.iter())
            .map(|(name, value)| Some(name.len() + names_of(value, depth + 1)?))
            .sum(),
        Err(_) => Some(0),
    }
}

/// Whether two values without others in them are the same.
fn is_same(one: &Dynamic, other: &Dynamic) -> bool {
    if let (Ok(one), Ok(other)) = (one.as_int(), other.as_int()) {
        return one == other;
    }
    if let (Ok(one), Ok(other)) = (one.as_bool(), other.as_bool()) {
        return one == other;
    }
    match (
        one.as_immutable_string_ref(),
        other.as_immutable_string_ref(),
    ) {
        (Ok(one), Ok(other)) => *one == *other,
        _ => false,
    }
}

fn int(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

pub(crate) fn register(module: &mut Module) {
    texts(module);
    arrays(module);
    maps(module);
}

/// A text, and behind it another value as text; or the other way round.
fn joined<T: std::fmt::Display + rhai::Variant + Clone>(module: &mut Module) {
    module.set_native_fn("+", |cx: NativeCallContext, text: &str, value: T| {
        let joined = format!("{text}{value}");
        text_of(&cx, Some(joined.len())).map(|_| joined)
    });
    module.set_native_fn("+", |cx: NativeCallContext, value: T, text: &str| {
        let joined = format!("{value}{text}");
        text_of(&cx, Some(joined.len())).map(|_| joined)
    });
}

fn texts(module: &mut Module) {
    joined::<i64>(module);
    joined::<f64>(module);
    joined::<bool>(module);
    module.set_native_fn("len", |text: &str| Made::Ok(int(text.chars().count())));
    module.set_native_fn("is_empty", |text: &str| Made::Ok(text.is_empty()));
    module.set_native_fn("contains", |text: &str, part: &str| {
        Made::Ok(text.contains(part))
    });
    module.set_native_fn("starts_with", |text: &str, part: &str| {
        Made::Ok(text.starts_with(part))
    });
    module.set_native_fn("ends_with", |text: &str, part: &str| {
        Made::Ok(text.ends_with(part))
    });
    module.set_native_fn("index_of", |text: &str, part: &str| {
        let before = text.find(part).map(|at| text[..at].chars().count());
        Made::Ok(before.map_or(-1, int))
    });
    module.set_native_fn("trim", |text: &str| {
        Made::Ok(ImmutableString::from(text.trim()))
    });
    module.set_native_fn("sub_string", |text: &str, from: i64| {
        Made::Ok(text.chars().skip(size(from)).collect::<String>())
    });
    module.set_native_fn("sub_string", |text: &str, from: i64, length: i64| {
        let part = text.chars().skip(size(from)).take(size(length));
        Made::Ok(part.collect::<String>())
    });
    module.set_native_fn("to_upper", |cx: NativeCallContext, text: &str| {
        text_of(&cx, text.len().checked_mul(3))?; // one letter may become three
        Ok(text.to_uppercase())
    });
    module.set_native_fn("to_lower", |cx: NativeCallContext, text: &str| {
        text_of(&cx, text.len().checked_mul(3))?;
        Ok(text.to_lowercase())
    });
    module.set_native_fn(
        "replace",
        |cx: NativeCallContext, text: &str, part: &str, by: &str| {
            let times = text.matches(part).count();
            let more = times.checked_mul(by.len());
            text_of(&cx, more.and_then(|more| more.checked_add(text.len())))?;
            Ok(text.replace(part, by))
        },
    );
    module.set_native_fn(
        "pad",
        |cx: NativeCallContext, text: &mut ImmutableString, letters: i64, by: char| {
            let missing = size(letters).saturating_sub(text.chars().count());
            let more = missing.checked_mul(by.len_utf8());
            text_of(&cx, more.and_then(|more| more.checked_add(text.len())))?;
            let mut padded = text.to_string();
            padded.extend(std::iter::repeat_n(by, missing));
            *text = padded.into();
            Ok(())
        },
    );
    module.set_native_fn("split", |cx: NativeCallContext, text: &str, by: &str| {
        let count = text.matches(by).count().saturating_add(1);
        array_of(&cx, count, &Dynamic::UNIT)?;
        let parts = text.split(by).map(|part| Dynamic::from(part.to_owned()));
        Ok(parts.collect::<Array>())
    });
}

fn arrays(module: &mut Module) {
    module.set_iterable::<Array>();
    module.set_native_fn("len", |array: &mut Array| Made::Ok(int(array.len())));
    module.set_native_fn("is_empty", |array: &mut Array| Made::Ok(array.is_empty()));
    module.set_native_fn(
        "push",
        |cx: NativeCallContext, array: &mut Array, value: Dynamic| {
            array_of(&cx, array.len() + 1, &Dynamic::UNIT)?;
            array.push(value);
            Ok(())
        },
    );
    module.set_native_fn("pop", |array: &mut Array| {
        Made::Ok(array.pop().unwrap_or(Dynamic::UNIT))
    });
    module.set_native_fn(
        "pad",
        |cx: NativeCallContext, array: &mut Array, length: i64, value: Dynamic| {
            let length = array_of(&cx, size(length).max(array.len()), &value)?;
            array.resize(length, value);
            Ok(())
        },
    );
    module.set_native_fn(
        "+=",
        |cx: NativeCallContext, array: &mut Array, other: Array| {
            array_of(&cx, array.len().saturating_add(other.len()), &Dynamic::UNIT)?;
            array.extend(other);
            Ok(())
        },
    );
    module.set_native_fn("contains", |array: &mut Array, value: Dynamic| {
        Made::Ok(array.iter().any(|one| is_same(one, &value)))
    });
    module.set_native_fn(
        "join",
        |cx: NativeCallContext, array: &mut Array, by: &str| {
            let texts = array.iter().map(|part| part.as_immutable_string_ref().ok());
            let texts: Option<Vec<_>> = texts.collect();
            let Some(texts) = texts else {
                let why = "only texts can be joined";
                return Err(Box::<EvalAltResult>::from(why));
            };
            let bytes: usize = texts.iter().map(|text| text.len() + by.len()).sum();
            text_of(&cx, Some(bytes))?;
            let texts: Vec<&str> = texts.iter().map(|text| text.as_str()).collect();
            Ok(texts.join(by))
        },
    );
}

fn maps(module: &mut Module) {
    module.set_native_fn("len", |map: &mut Map| Made::Ok(int(map.len())));
    module.set_native_fn("is_empty", |map: &mut Map| Made::Ok(map.is_empty()));
    module.set_native_fn("contains", |map: &mut Map, name: &str| {
        Made::Ok(map.contains_key(name))
    });
    module.set_native_fn("remove", |map: &mut Map, name: &str| {
        Made::Ok(map.remove(name).unwrap_or(Dynamic::UNIT))
    });
    module.set_native_fn("keys", |map: &mut Map| {
        let names = map.keys().map(|name| Dynamic::from(name.to_string()));
        Made::Ok(names.collect::<Array>())
    });
    module.set_native_fn("values", |map: &mut Map| {
        Made::Ok(map.values().cloned().collect::<Array>())
    });
}
