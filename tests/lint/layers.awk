# Reads sources and prints each include that tests/lint/rooms.awk does not allow; for tests/lint/layers.
function rule(folder, allowed,    words, n, i) {
  known[folder] = 1
  n = split(allowed " " folder, words, " ")
  for (i = 1; i <= n; i++) may[folder, words[i]] = 1
}
# The folder of the table that a file belongs to: the longest that is a prefix of its path.
function layer_of(path,    folder) {
  for (folder = path; folder != "" && !(folder in known);) if (!sub(/\/[^\/]*$/, "", folder)) folder = ""
  return folder
}
function finding(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
function home(pattern, folders, name) { vendor[++vendors] = pattern; homes[pattern] = " " folders " "; label[pattern] = name }

BEGIN {
  known["tests"] = 1
}

FNR == 1 {
  layer = layer_of(FILENAME)
  if (layer == "") finding("no layer is declared for this folder; give it a rule in tests/lint/rooms.awk")
}

/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
  quoted = index($0, "\"") > 0
  target = $0
  sub(/^[^<"]*[<"]/, "", target)
  sub(/[>"].*$/, "", target)
  if (target ~ /(^|\/)\.\.?\//) finding("relative include " target "; write the path from the repository root")
  if (layer == "" || layer == "tests") next

  if (target ~ /^tests\//) { finding("product code includes a test header: " target); next }
  if (target ~ /^(launcher|runtime|plugins|cluster-configs|jobs|docs)\//) {
    other = layer_of(target)
    if (other == "") finding("includes " target ", which belongs to no declared layer")
    else if (!((layer, other) in may)) finding(layer " may not include " other " (" target ")")
    next
  }
  if (quoted) finding("quoted include " target " is not a path from the repository root")
  for (v = 1; v <= vendors; v++)
    if (target ~ vendor[v]) {
      if (index(homes[vendor[v]], " " layer " ") == 0)
        finding(label[vendor[v]] " (" target ") may only be included in" homes[vendor[v]] "not in " layer)
      break
    }
}
END { exit bad }
