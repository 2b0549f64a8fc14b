// Visible: text from outside, made safe to show on a terminal.
//
// What a program printed, what a record says and what a file is called may hold bytes that a terminal obeys: they
// could move its cursor, set the clipboard, or turn the direction of the words behind them. Every text that we did not
// write ourselves goes through here on its way to a person.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardrun::base {

// Returns the bytes of the UTF-8 character that `text`, which is not empty, begins with; 0 if it begins with none.
// Overlong forms, surrogates and what lies above U+10FFFF are none.
size_t character_length(std::string_view text);
// Returns the bytes of that character, or the first byte; nothing of an empty text.
std::string_view first_character(std::string_view text);
// Returns the code of a UTF-8 character; of another byte that byte.
uint32_t code_of(std::string_view character);

// Says whether a character steers a terminal (the C0 controls with tab and newline, DEL, the C1 controls U+0080 to
// U+009F), breaks a line, or turns the direction of what follows it.
bool is_control(std::string_view character);

// Returns `text` with each byte of controls and of what is no UTF-8 written as \xNN; a tab stays.
std::string visible(std::string_view text);
// Does the same line by line: newlines stay, too.
std::string visible_lines(std::string_view text);

}  // namespace shardrun::base
