//! Lines of a trace as text: the forms that are read, and what is wrong with a line. Knows nothing of files.

use csv::ByteRecord;

use crate::workload::values::VALUE_BYTES_MAX;

/// An operation of a trace, as an index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceOp {
    /// Reads the key.
    Get,
    /// Sets the key, present or not.
    Put,
    /// Sets the key if it is absent.
    Insert,
    /// Sets the key if it is present.
    Update,
    /// Removes the key.
    Remove,
}

/// Operations of the published traces by name. Those that change a part of a value write a whole one here, since the
/// line does not tell what changed.
const OPERATIONS: [(&str, TraceOp); 11] = [
    ("get", TraceOp::Get),
    ("gets", TraceOp::Get),
    ("set", TraceOp::Put),
    ("add", TraceOp::Insert),
    ("replace", TraceOp::Update),
    ("cas", TraceOp::Update),
    ("append", TraceOp::Update),
    ("prepend", TraceOp::Update),
    ("incr", TraceOp::Update),
    ("decr", TraceOp::Update),
    ("delete", TraceOp::Remove),
];

impl TraceOp {
    /// All of them.
    pub(super) const ALL: [TraceOp; 5] =
        [TraceOp::Get, TraceOp::Put, TraceOp::Insert, TraceOp::Update, TraceOp::Remove];

    /// Tells whether a trace that begins with it on a key was recorded when the key was there already.
    pub(super) fn needs_key(self) -> bool {
        !matches!(self, TraceOp::Put | TraceOp::Insert)
    }
}

/// A line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) key: &'a [u8],
    pub(super) value_bytes: u16,
    pub(super) op: TraceOp,
}

/// A form of lines: the names of its columns, and the places of those that matter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form {
    names: &'static [&'static str],
    /// Columns that are numbers and not used further: they show that a line is what it seems to be.
    numbers: &'static [usize],
    key: usize,
    value_size: usize,
    operation: usize,
}

/// The form of the traces of Twitter's cache clusters, and a short one.
static FORMS: [Form; 2] = [
    Form {
        names: &["timestamp", "key", "key size", "value size", "client id", "operation", "TTL"],
        numbers: &[0, 2, 6],
        key: 1,
        value_size: 3,
        operation: 5,
    },
    Form {
        names: &["timestamp", "key", "value size", "operation"],
        numbers: &[0],
        key: 1,
        value_size: 2,
        operation: 3,
    },
];

impl Form {
    /// Finds the form of a trace by its first line.
    ///
    /// # Errors
    /// A sentence, if it has another number of columns than all of them.
    pub(super) fn of(record: &ByteRecord) -> Result<&'static Form, String> {
        FORMS.iter().find(|form| form.names.len() == record.len()).ok_or_else(|| {
            let forms: Vec<String> = FORMS.iter().map(Form::columns).collect();
            format!("{} columns: expected {}", record.len(), forms.join(" or "))
        })
    }

    /// Reads a line.
    ///
    /// # Errors
    /// A sentence that names the column, and says what was expected.
    pub(super) fn read<'a>(&self, record: &'a ByteRecord) -> Result<Row<'a>, String> {
        if record.len() != self.names.len() {
            return Err(format!(
                "{} columns: expected {}, as on the first line",
                record.len(),
                self.columns()
            ));
        }
        if let Some(&at) = self.numbers.iter().find(|&&at| !is_number(&record[at])) {
            return Err(self.wrong(record, at, "a number"));
        }
        let value_bytes = bytes(&record[self.value_size])
            .ok_or_else(|| self.wrong(record, self.value_size, &format!("0 to {VALUE_BYTES_MAX} bytes")))?;
        let op = &record[self.operation];
        let op = OPERATIONS.iter().find(|(name, _)| name.as_bytes() == op).ok_or_else(|| {
            let names = OPERATIONS.map(|(name, _)| name);
            self.wrong(record, self.operation, &format!("one of {}", names.join(", ")))
        })?;
        Ok(Row { key: &record[self.key], value_bytes, op: op.1 })
    }

    fn columns(&self) -> String {
        format!("{} ({})", self.names.len(), self.names.join(", "))
    }

    #[cold]
    fn wrong(&self, record: &ByteRecord, at: usize, expected: &str) -> String {
        let found = String::from_utf8_lossy(&record[at]);
        format!("column {} ({}) is {found:?}: expected {expected}", at + 1, self.names[at])
    }
}

fn is_number(field: &[u8]) -> bool {
    field.first().is_some_and(u8::is_ascii_digit)
        && field.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.')
}

/// Reads a number of bytes that a value may have.
fn bytes(field: &[u8]) -> Option<u16> {
    let bytes: u16 = str::from_utf8(field).ok()?.parse().ok()?;
    (u64::from(bytes) <= VALUE_BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> ByteRecord {
        ByteRecord::from(line.split(',').collect::<Vec<_>>())
    }

    fn error(line: &str) -> String {
        let record = record(line);
        match Form::of(&record).and_then(|form| form.read(&record)) {
            Err(error) => error,
            Ok(row) => panic!("{line}: {row:?}"),
        }
    }

    #[test]
    fn both_forms_are_read() {
        for line in ["0,q:q:1:8WTfjZU14ee,17,213,4,cas,3600", "1.5,q:q:1:8WTfjZU14ee,213,cas"] {
            let record = record(line);
            let row = Form::of(&record).unwrap().read(&record).unwrap();
            assert_eq!(row, Row { key: b"q:q:1:8WTfjZU14ee", value_bytes: 213, op: TraceOp::Update });
        }
    }

    #[test]
    fn operations_are_those_of_the_published_traces() {
        let of = |name: &str| {
            let record = record(&format!("0,k,8,{name}"));
            FORMS[1].read(&record).map(|row| row.op)
        };
        for (op, names) in [
            (TraceOp::Get, &["get", "gets"][..]),
            (TraceOp::Put, &["set"]),
            (TraceOp::Insert, &["add"]),
            (TraceOp::Update, &["replace", "cas", "append", "prepend", "incr", "decr"]),
            (TraceOp::Remove, &["delete"]),
        ] {
            assert!(names.iter().all(|name| of(name) == Ok(op)), "{op:?}");
        }
        for wrong in ["", "GET", "put", "get "] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_column_and_what_was_expected() {
        for (line, expected) in [
            ("now,k,8,get", "column 1 (timestamp) is \"now\": expected a number"),
            (",k,8,get", "column 1 (timestamp) is \"\": expected a number"),
            ("0,k,x,8,1,get,0", "column 3 (key size) is \"x\": expected a number"),
            ("0,k,1,8,1,get,never", "column 7 (TTL) is \"never\": expected a number"),
            ("0,k,-1,get", "column 3 (value size) is \"-1\": expected 0 to 4096 bytes"),
            ("0,k,4097,set", "column 3 (value size) is \"4097\": expected 0 to 4096 bytes"),
            ("0,k,1,70000,1,set,0", "column 4 (value size) is \"70000\": expected 0 to 4096 bytes"),
            ("0,k,1,8,1,touch,0", "column 6 (operation) is \"touch\": expected one of get, gets, set, "),
            ("0,k,8", "3 columns: expected 7 (timestamp, key, key size, "),
            ("0,k,8", ") or 4 (timestamp, key, value size, operation)"),
        ] {
            let error = error(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
        let longer = record("0,k,1,8,1,get,0");
        let error = FORMS[1].read(&longer).unwrap_err();
        assert_eq!(
            error,
            "7 columns: expected 4 (timestamp, key, value size, operation), as on the first line"
        );
    }

    #[test]
    fn limits_are_allowed() {
        for value_bytes in [0, 4096] {
            let record = record(&format!("0,k,{value_bytes},set"));
            assert_eq!(FORMS[1].read(&record).unwrap().value_bytes, value_bytes);
        }
    }
}
