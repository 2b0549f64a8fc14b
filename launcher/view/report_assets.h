// The script and the style sheet of reports (report.js, report.css), as the build put them into the program, and the SHA-256 of
// each in base64, as a content security policy names it.
//
// Thread rule: constants.
#pragma once

namespace shardrun::launcher {

extern const char* const kReportScript;
extern const char* const kReportStyle;
extern const char* const kReportScriptHash;
extern const char* const kReportStyleHash;

}  // namespace shardrun::launcher
