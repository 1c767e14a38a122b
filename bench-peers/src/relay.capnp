@0xb3f4a1c27d5e9068;

interface Relay {
  # Answers with what it got.
  pass @0 (payload :Data) -> (payload :Data);
}
