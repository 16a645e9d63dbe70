#include "data/pretokenize.h"

#include <algorithm>

#include "base/status.h"
#include "data/tokenizer_normalizer.h"
#include "data/unicode.h"

namespace tranche {
namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

absl::StatusOr<Behavior> ReadBehavior(const JsonNode& node, absl::string_view otherwise) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string name, node.String("behavior", otherwise));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return node.Child("behavior")
      .Error("\"" + name +
             "\" is unknown; allowed are Removed, Isolated, MergedWithPrevious, MergedWithNext, "
             "Contiguous");
}

struct Span {
  size_t begin, end;
  bool is_match;
};

// Fills the gaps between matches, so that spans cover the text.
class SpanList {
 public:
  explicit SpanList(absl::string_view text) : text_(text) {}

  void Match(size_t begin, size_t end) {
    if (begin > done_) spans_.push_back({done_, begin, false});
    spans_.push_back({begin, end, true});
    done_ = end;
  }

  // Hands out the pieces that the behavior makes of the spans.
  void Emit(Behavior behavior, bool invert, bool at_start, PieceSink sink) {
    if (done_ < text_.size()) spans_.push_back({done_, text_.size(), false});
    std::vector<Span> pieces;
    bool previous = false;
    const auto add = [&](const Span& span, bool join) {
      if (join && !pieces.empty()) {
        pieces.back().begin = std::min(pieces.back().begin, span.begin);
        pieces.back().end = std::max(pieces.back().end, span.end);
      } else {
        pieces.push_back(span);
      }
    };
    if (behavior == Behavior::kMergedWithNext) std::reverse(spans_.begin(), spans_.end());
    for (Span& span : spans_) {
      span.is_match ^= invert;
      switch (behavior) {
        case Behavior::kRemoved:
          if (!span.is_match) add(span, false);
          break;
        case Behavior::kIsolated:
          add(span, false);
          break;
        case Behavior::kContiguous:
          add(span, span.is_match == previous);
          break;
        case Behavior::kMergedWithPrevious:
        case Behavior::kMergedWithNext:
          add(span, span.is_match && !previous);
          break;
      }
      previous = span.is_match;
    }
    if (behavior == Behavior::kMergedWithNext) std::reverse(pieces.begin(), pieces.end());
    for (const Span& piece : pieces) {
      if (piece.end > piece.begin)
        sink(text_.substr(piece.begin, piece.end - piece.begin), at_start && piece.begin == 0);
    }
  }

 private:
  const absl::string_view text_;
  std::vector<Span> spans_;
  size_t done_ = 0;
};

// Splits at characters of a kind; each is a match of its own.
class SplitAtCharacters : public PreTokenizeStep {
 public:
  SplitAtCharacters(const CodePointTable& classes, uint8_t bits, Behavior behavior)
      : classes_(classes), bits_(bits), behavior_(behavior) {}

  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    SpanList spans(piece);
    for (size_t position = 0; position < piece.size();) {
      const size_t start = position;
      if (classes_[NextCodePoint(piece, &position)] & bits_) spans.Match(start, position);
    }
    spans.Emit(behavior_, false, at_start, sink);
  }

 private:
  const CodePointTable& classes_;
  const uint8_t bits_;
  const Behavior behavior_;
};

// White space is dropped, punctuation stands alone.
class BertStep : public PreTokenizeStep {
 public:
  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    size_t word = 0;
    for (size_t position = 0; position < piece.size();) {
      const size_t start = position;
      const uint8_t bits = classes_[NextCodePoint(piece, &position)];
      if (!(bits & (kBertSpace | kBertPunctuation))) continue;
      if (start > word) sink(piece.substr(word, start - word), at_start && word == 0);
      if (!(bits & kBertSpace)) sink(piece.substr(start, position - start), at_start && start == 0);
      word = position;
    }
    if (word < piece.size()) sink(piece.substr(word), at_start && word == 0);
  }

 private:
  const CodePointTable& classes_ = BertClasses();
};

// \w+|[^\w\s]+, white space dropped.
class WhitespaceStep : public PreTokenizeStep {
 public:
  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    enum Kind { kWords, kMarks, kNothing };
    Kind current = kNothing;
    size_t begin = 0;
    for (size_t position = 0; position <= piece.size();) {
      const size_t start = position;
      Kind kind = kNothing;
      if (position == piece.size()) {
        ++position;
      } else {
        const uint8_t bits = classes_[NextCodePoint(piece, &position)];
        kind = bits & kWordChar ? kWords : bits & kSpace ? kNothing : kMarks;
      }
      if (kind == current) continue;
      if (current != kNothing) sink(piece.substr(begin, start - begin), at_start && begin == 0);
      begin = start;
      current = kind;
    }
  }

 private:
  const CodePointTable& classes_ = CharClasses();
};

class SplitStep : public PreTokenizeStep {
 public:
  SplitStep(TextPattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    SpanList spans(piece);
    pattern_.ForEach(piece, [&](size_t begin, size_t end) { spans.Match(begin, end); });
    spans.Emit(behavior_, invert_, at_start, sink);
  }

 private:
  const TextPattern pattern_;
  const Behavior behavior_;
  const bool invert_;
};

class ScanStep : public PreTokenizeStep {
 public:
  explicit ScanStep(ScanPattern pattern) : pattern_(pattern) {}
  ScanPattern pattern() const { return pattern_; }

  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    ScanAll(pattern_, piece, [&](size_t begin, size_t end) {
      sink(piece.substr(begin, end - begin), at_start && begin == 0);
    });
  }

 private:
  const ScanPattern pattern_;
};

class PrefixSpaceStep : public PreTokenizeStep {
 public:
  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    if (piece[0] == ' ') return sink(piece, at_start);
    std::string with_space(1, ' ');
    with_space.append(piece.data(), piece.size());
    sink(with_space, at_start);
  }
};

class StandInStep : public PreTokenizeStep {
 public:
  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    std::string mapped;
    for (const char c : piece) mapped += ByteToStandIn(static_cast<uint8_t>(c));
    sink(mapped, at_start);
  }
};

class MetaspaceStep : public PreTokenizeStep {
 public:
  enum class Prepend { kFirst, kAlways, kNever };
  MetaspaceStep(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)),
        prepend_(prepend),
        split_(split),
        pattern_(TextPattern::Plain(replacement_)) {}

  void Cut(absl::string_view piece, bool at_start, PieceSink sink) const override {
    std::string text;
    for (const char c : piece) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    const bool prepend = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
    if (prepend && text.compare(0, replacement_.size(), replacement_) != 0)
      text.insert(0, replacement_);
    if (!split_) return sink(text, at_start);
    SpanList spans(text);
    pattern_.ForEach(text, [&](size_t begin, size_t end) { spans.Match(begin, end); });
    spans.Emit(Behavior::kMergedWithNext, false, at_start, sink);
  }

 private:
  const std::string replacement_;
  const Prepend prepend_;
  const bool split_;
  const TextPattern pattern_;
};

}  // namespace

PreTokenizer PreTokenizer::Bert() {
  PreTokenizer result;
  result.steps_.push_back(std::make_unique<BertStep>());
  result.only_bert_ = true;
  return result;
}

PreTokenizer PreTokenizer::ByteLevel(ScanPattern pattern) {
  PreTokenizer result;
  result.byte_level_ = true;
  if (pattern != ScanPattern::kNone) result.steps_.push_back(std::make_unique<ScanStep>(pattern));
  result.only_pattern_ = pattern;
  return result;
}

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const JsonNode& node) {
  PreTokenizer result;
  if (node.IsNull()) return result;
  TRANCHE_RETURN_IF_ERROR(result.Add(node));
  if (!result.steps_.empty() && dynamic_cast<StandInStep*>(result.steps_.back().get()) != nullptr) {
    result.byte_level_ = true;
    result.steps_.pop_back();
  }
  const auto* scan =
      result.steps_.size() == 1 ? dynamic_cast<ScanStep*>(result.steps_[0].get()) : nullptr;
  if (scan != nullptr) result.only_pattern_ = scan->pattern();
  result.only_bert_ = result.steps_.size() == 1 && !result.byte_level_ &&
                      dynamic_cast<BertStep*>(result.steps_[0].get()) != nullptr;
  return result;
}

void PreTokenizer::CutFrom(size_t step, absl::string_view text, bool at_start,
                           PieceSink sink) const {
  if (step == steps_.size()) return sink(text, at_start);
  steps_[step]->Cut(text, at_start, [&](absl::string_view piece, bool first) {
    CutFrom(step + 1, piece, first, sink);
  });
}

absl::Status PreTokenizer::Add(const JsonNode& node) {
  std::string type;
  TRANCHE_ASSIGN_OR_RETURN(type, node.RequiredString("type"));
  if (type == "Sequence") {
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                             node.Child("pretokenizers").Elements());
    for (const JsonNode& element : elements) TRANCHE_RETURN_IF_ERROR(Add(element));
    return absl::OkStatus();
  }
  if (steps_.size() >= kMaxSteps) return node.Error("more than 100 steps of splitting");
  if (type == "BertPreTokenizer") {
    steps_.push_back(std::make_unique<BertStep>());
  } else if (type == "ByteLevel") {
    TRANCHE_ASSIGN_OR_RETURN(const bool prefix_space, node.Bool("add_prefix_space", true));
    TRANCHE_ASSIGN_OR_RETURN(const bool use_regex, node.Bool("use_regex", true));
    if (prefix_space) steps_.push_back(std::make_unique<PrefixSpaceStep>());
    if (use_regex) steps_.push_back(std::make_unique<ScanStep>(ScanPattern::kGpt2));
    steps_.push_back(std::make_unique<StandInStep>());
  } else if (type == "Split") {
    TRANCHE_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Read(node.Child("pattern")));
    TRANCHE_ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(node, ""));
    TRANCHE_ASSIGN_OR_RETURN(const bool invert, node.Bool("invert", false));
    const ScanPattern known = RecognisePattern(pattern.regex_text());
    // The known patterns cover the text: isolated, or inverted and "removed", the pieces are the
    // matches.
    if (known != ScanPattern::kNone &&
        (behavior == Behavior::kIsolated || (behavior == Behavior::kRemoved && invert))) {
      steps_.push_back(std::make_unique<ScanStep>(known));
    } else {
      steps_.push_back(std::make_unique<SplitStep>(std::move(pattern), behavior, invert));
    }
  } else if (type == "Metaspace") {
    TRANCHE_ASSIGN_OR_RETURN(std::string replacement, node.String("replacement", "\u2581"));
    if (replacement.empty() || Utf8Length(replacement[0]) != replacement.size()) {
      return node.Child("replacement").Error("one character is needed here");
    }
    TRANCHE_ASSIGN_OR_RETURN(const bool add_prefix_space, node.Bool("add_prefix_space", true));
    TRANCHE_ASSIGN_OR_RETURN(const std::string scheme,
                             node.String("prepend_scheme", add_prefix_space ? "always" : "never"));
    TRANCHE_ASSIGN_OR_RETURN(const bool split, node.Bool("split", true));
    if (scheme != "first" && scheme != "always" && scheme != "never") {
      return node.Child("prepend_scheme")
          .Error("\"" + scheme + "\" is unknown; allowed are first, always, never");
    }
    if (!add_prefix_space && scheme != "never") {
      return node.Child("prepend_scheme")
          .Error("\"" + scheme + "\" contradicts add_prefix_space = false");
    }
    const auto prepend = scheme == "first"    ? MetaspaceStep::Prepend::kFirst
                         : scheme == "always" ? MetaspaceStep::Prepend::kAlways
                                              : MetaspaceStep::Prepend::kNever;
    steps_.push_back(std::make_unique<MetaspaceStep>(std::move(replacement), prepend, split));
  } else if (type == "Digits") {
    TRANCHE_ASSIGN_OR_RETURN(const bool individual, node.Bool("individual_digits", false));
    steps_.push_back(std::make_unique<SplitAtCharacters>(
        CharClasses(), kNumber, individual ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Punctuation") {
    TRANCHE_ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(node, "Isolated"));
    steps_.push_back(
        std::make_unique<SplitAtCharacters>(BertClasses(), kBertPunctuation, behavior));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<WhitespaceStep>());
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(
        std::make_unique<SplitAtCharacters>(CharClasses(), kSpace, Behavior::kRemoved));
  } else {
    return node.UnknownType(
        type, {"BertPreTokenizer", "ByteLevel", "Split", "Sequence", "Metaspace", "Digits",
               "Punctuation", "Whitespace", "WhitespaceSplit"});
  }
  return absl::OkStatus();
}

}  // namespace tranche
