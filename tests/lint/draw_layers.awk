# Draws the table of tests/lint/rooms.awk as SVG: rooms stand on floors, each above all that it may include; an arrow is drawn
# where no longer way says the same. For tests/lint/draw_layers.

# The floor of a room: one above the highest of those that it may include.
function level_of(room,    i, n, parts, most) {
  if (room in level) return level[room]
  most = -1
  n = split(below[room], parts, " ")
  for (i = 1; i <= n; i++) if (level_of(parts[i]) > most) most = level[parts[i]]
  return level[room] = most + 1
}
# Whether `from` reaches `to` by arrows.
function reaches(from, to,    key, i, n, parts) {
  key = from SUBSEP to
  if (key in reached) return reached[key]
  if (from == to) return 1
  reached[key] = 0
  n = split(below[from], parts, " ")
  for (i = 1; i <= n && !reached[key]; i++) if (reaches(parts[i], to)) reached[key] = 1
  return reached[key]
}
function needed(from, to,    i, n, parts) {
  n = split(below[from], parts, " ")
  for (i = 1; i <= n; i++) if (parts[i] != to && reaches(parts[i], to)) return 0
  return 1
}
function wing_of(room) {
  if (room ~ /^launcher/) return "launcher"
  if (room ~ /^runtime\/trainer/) return "trainer"
  if (room ~ /^plugins/) return "plugins"
  return "runtime"
}
function label(room) { sub(/^(runtime\/trainer|launcher|runtime|plugins)\//, "", room); sub(/\.cpp$/, "", room); return room }
function rule(room, allowed) { rooms[++count] = room; below[room] = allowed }
function home(pattern, folders, name) {}

END {
  split("launcher runtime trainer plugins", wings, " ")
  split("#dbe9f9 #e7e7e7 #dff0d8 #fbe8cf", fills, " ")
  for (i = 1; i <= count; i++) if (level_of(rooms[i]) > floors) floors = level[rooms[i]]
  box_w = 104; box_h = 26; gap = 14; floor_h = 72; margin = 24
  left = margin
  for (w = 1; w <= 4; w++) {
    widest = 0
    for (f = 0; f <= floors; f++) {
      n = 0
      for (i = 1; i <= count; i++) if (wing_of(rooms[i]) == wings[w] && level[rooms[i]] == f) n++
      on_floor[w, f] = n
      if (n > widest) widest = n
    }
    width[w] = widest * (box_w + gap) - gap
    start[w] = left
    left += width[w] + 3 * gap
  }
  total_w = left - 3 * gap + margin; total_h = (floors + 1) * floor_h + 2 * margin
  for (w = 1; w <= 4; w++) for (f = 0; f <= floors; f++) {
    x0 = start[w] + (width[w] - (on_floor[w, f] * (box_w + gap) - gap)) / 2
    for (i = 1; i <= count; i++) if (wing_of(rooms[i]) == wings[w] && level[rooms[i]] == f) {
      x[rooms[i]] = x0; fill[rooms[i]] = fills[w]; x0 += box_w + gap
      y[rooms[i]] = margin + (floors - f) * floor_h + 20
    }
  }
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n", total_w, total_h
  print "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#888\"/></marker></defs>"
  printf "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", total_w, total_h
  for (w = 1; w <= 4; w++) printf "<text x=\"%d\" y=\"18\" text-anchor=\"middle\" font-weight=\"bold\">%s</text>\n", start[w] + width[w] / 2, wings[w] == "trainer" ? "runtime/trainer" : wings[w]
  for (i = 1; i <= count; i++) {
    n = split(below[rooms[i]], parts, " ")
    for (k = 1; k <= n; k++) if (needed(rooms[i], parts[k])) {
      x1 = x[rooms[i]] + box_w / 2; y1 = y[rooms[i]] + box_h; x2 = x[parts[k]] + box_w / 2; y2 = y[parts[k]]
      bend = (y2 - y1) * 0.45
      printf "<path d=\"M%d %dC%d %d %d %d %d %d\" fill=\"none\" stroke=\"#999\" marker-end=\"url(#tip)\"/>\n", x1, y1, x1, y1 + bend, x2, y2 - bend, x2, y2
    }
  }
  for (i = 1; i <= count; i++) {
    printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" stroke=\"#555\"/>", x[rooms[i]], y[rooms[i]], box_w, box_h, fill[rooms[i]]
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x[rooms[i]] + box_w / 2, y[rooms[i]] + 17, label(rooms[i])
  }
  print "</svg>"
}
