// EvaluationSpec: [evaluation] of a job spec, and how it is read: data sets that are evaluated by themselves, and what follows from
// the validation loss.
//
// Thread rule: plain values; the functions are pure but for `reading`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::spec {

struct JobSpec;
struct SpecReading;
struct TomlValue;

struct EvaluationSet {  // a data set that is evaluated by itself
  std::string name;
  std::vector<std::string> files;  // of the kinds of [data] validation
};

struct EvaluationSpec {             // [evaluation]
  std::vector<EvaluationSet> sets;  // every other key
  bool keep_best = false;           // whether the checkpoint with the lowest validation loss is kept
  int64_t stop_after = 0;  // the training ends when so many evaluations in a row were no better; 0: never

  // Returns whether the run has to know which evaluation was the best.
  bool watches_best() const { return keep_best || stop_after > 0; }
};

void read_evaluation(const TomlValue& document, SpecReading& reading, EvaluationSpec& evaluation);

// Refuses to judge by a validation loss that the job, whose other sections are read, does not measure.
void check_evaluation(const TomlValue& document, SpecReading& reading, const JobSpec& spec);

}  // namespace shardrun::spec
