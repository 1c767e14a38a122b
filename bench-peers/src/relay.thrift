service Relay {
  /** Answers with what it got. */
  binary echo(1: binary payload)
}
