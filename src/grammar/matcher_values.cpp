// How objects and arrays open: what may come at a place in one, and what comes behind it.
#include <algorithm>
#include <string>

#include "grammar/matcher.h"

namespace nibble {
namespace {

// How far an array with counted elements is: 0 before its bracket, else one more than this.
struct CountedPlace {
  std::uint32_t count = 0, found = 0;  // no more than matter
  static CountedPlace of(std::uint32_t at) { return {(at - 1) & 0x7FFF, (at - 1) >> 15}; }
  std::uint32_t pack() const { return (found << 15 | count) + 1; }
};

// So many members matter.
std::uint32_t counted_members(const ObjectShape& object) {
  return object.most != kUnbounded ? object.most : std::max(object.least, 1u);
}

}  // namespace

// How far an object is: 0 before its brace, else one more than this.
struct Matcher::ObjectPlace {
  std::uint32_t member = 0;  // the first that may still come
  std::uint32_t count = 0;   // members so far, no more than matter
  AskedSet found = 0;        // of what is asked for that which has come
  bool at_key = false;       // a key comes next; else a comma, the first key's white space, or the end

  // What is asked for takes the upper bits of the count.
  static ObjectPlace of(std::uint32_t at, const ObjectShape& object) {
    const std::uint32_t so_far = (at - 1) >> 1 & 0xFFFF;
    const std::uint32_t counts = object.asked ? kMostCountedBesideAsked : 0xFFFF;
    return {.member = (at - 1) >> 17,
            .count = so_far & counts,
            .found = object.asked ? so_far / (kMostCountedBesideAsked + 1) : 0,
            .at_key = ((at - 1) & 1) != 0};
  }
  std::uint32_t pack() const {
    return (member << 17 | found * (kMostCountedBesideAsked + 1) << 1 | count << 1 | at_key) + 1;
  }
};

// An object that is being opened.
struct Matcher::OpenObject {
  const ObjectShape& shape;
  Frame at;
  std::uint32_t frame;  // whose place `at` is
  ObjectPlace place;
  AskedSet missing = 0;                      // of what is asked for
  const AskedNeeds* needs = nullptr;         // where anything is
  std::uint32_t others = 0;                  // names that may still come
  std::uint32_t declared = 0, required = 0;  // of the members that may still come

  // How many members must come, from this one on, beside those that are required; kUnbounded: no number is
  // enough.
  std::uint32_t needed(std::uint32_t member, AskedSet asked) const {
    return asked == 0 ? 0 : (*needs)[member][asked];
  }
  // Whether there is room for a member, and behind it for those that must come.
  bool fits(std::uint32_t still_required, std::uint32_t still_needed) const {
    return still_needed != kUnbounded &&
           (shape.most == kUnbounded ||
            std::uint64_t{place.count} + 1 + still_required + still_needed <= shape.most);
  }
  // Whether there are enough, with a member and the declared ones that may come behind it.
  bool is_enough(std::uint32_t behind) const {
    return std::uint64_t{place.count} + 1 + behind + others >= shape.least;
  }
};

// The key or the element has been read: what comes behind it knows it.
void Matcher::enter_copied(const Frame& copied) {
  const Frame before = frames_[copied.next];
  const Symbol& symbol = symbols_->symbols[before.symbol];
  const bool array = symbol.kind == Symbol::Kind::array;
  Language seen = before.seen;
  if (!bare_[copied.next]) {
    seen = languages_.any_of({seen, languages_.literal(text_of(copied.at))});
  } else if (!array) {
    // Some name, so that they are counted; no text has the byte.
    seen = languages_.any_of({seen, languages_.literal(std::string(languages_.choices(seen) + 1, '\xFF'))});
  }
  if (array) return enter(frame(before.symbol, before.at & ~kAtElement, before.next, seen));
  const ObjectShape& object = symbols_->objects[symbol.a];
  ObjectPlace behind = ObjectPlace::of(before.at, object);
  behind.at_key = false;
  behind.count = std::min(behind.count + 1, counted_members(object));
  const std::size_t others = object.others.size();
  SymbolId value = kNoSymbol;
  if (copied.seen < others) {
    value = object.others[copied.seen].value;
  } else {
    const AskedMembers::Other& asked = object.asked->others[copied.seen - others];
    value = asked.value;
    behind.found |= asked.as;
  }
  add(object.colon, frame(value, 0, frame(before.symbol, behind.pack(), before.next, seen)));
}

// How many more names the others can have: kUnbounded where nothing asks.
std::uint32_t Matcher::others_left(const ObjectShape& object, const Frame& at) const {
  std::uint64_t names = 0;
  for (const auto& other : object.others)
    if ((*usable_)[other.value]) names += other.names;
  if (names >= kUnbounded) return kUnbounded;
  return static_cast<std::uint32_t>(names - std::min<std::uint64_t>(names, languages_.choices(at.seen)));
}

void Matcher::enter_object(const Frame& at, std::uint32_t place_of_frame) {
  const std::uint32_t which = symbols_->symbols[at.symbol].a;
  const ObjectShape& object = symbols_->objects[which];
  if (at.at == 0) {
    add(object.open, frame(at.symbol, ObjectPlace{}.pack(), at.next));
    return;
  }
  OpenObject open{
      .shape = object, .at = at, .frame = place_of_frame, .place = ObjectPlace::of(at.at, object)};
  if (object.asked) {
    open.missing = object.asked->all() & ~open.place.found;
    open.needs = &asked_needs_[which];
  }
  open.others = others_left(object, at);
  for (std::size_t i = open.place.member; i < object.members.size(); ++i) {
    open.declared += (*usable_)[object.members[i].value];
    open.required += object.members[i].required;
  }
  if (open.place.at_key) {
    enter_declared(open);
    enter_others(open);
  } else {
    enter_between(open);
  }
}

// Behind the brace or a member: the end, or what stands before another member.
void Matcher::enter_between(const OpenObject& open) {
  const ObjectShape& object = open.shape;
  const ObjectPlace& place = open.place;
  if (open.required == 0 && open.missing == 0 && place.count >= object.least) add(object.close, open.at.next);
  if (object.most != kUnbounded && place.count >= object.most) return;
  if (open.declared == 0 && open.others == 0) return;
  if (open.needed(place.member, open.missing) == kUnbounded) return;
  if (open.required == 0 && open.others == 0 && place.count + open.declared < object.least) return;
  ObjectPlace key = place;
  key.at_key = true;
  add(place.count == 0 ? object.before_first : object.comma,
      frame(open.at.symbol, key.pack(), open.at.next, open.at.seen));
}

void Matcher::add_member(const OpenObject& open, Language key, SymbolId value, ObjectPlace behind) {
  behind.count = std::min(open.place.count + 1, counted_members(open.shape));
  add(languages_.concat(key, open.shape.colon),
      frame(value, 0, frame(open.at.symbol, behind.pack(), open.at.next, open.at.seen)));
}

// The declared members up to the first that must come.
void Matcher::enter_declared(const OpenObject& open) {
  const ObjectShape& object = open.shape;
  std::uint32_t behind = open.declared;
  for (std::uint32_t i = open.place.member; i < object.members.size(); ++i) {
    const ObjectShape::Member& each = object.members[i];
    behind -= (*usable_)[each.value];
    const std::uint32_t required = open.required - each.required;
    const bool comes = (*usable_)[each.value] && open.is_enough(behind);
    // Read as some of what is missing, or as none of it.
    for (AskedSet as = 0; comes && as <= open.missing; ++as) {
      if ((as & ~open.missing) != 0) continue;
      const SymbolId value = as == 0 ? each.value : object.asked->value(i, as);
      if (value == kNoSymbol || !(*usable_)[value]) continue;
      if (!open.fits(required, open.needed(i + 1, open.missing & ~as))) continue;
      add_member(open, each.key, value, {.member = i + 1, .found = open.place.found | as});
    }
    if (each.required) return;
  }
}

// Members that are not declared.
void Matcher::enter_others(const OpenObject& open) {
  const ObjectShape& object = open.shape;
  if (open.others == 0) return;
  const auto fits = [&](AskedSet missing) {
    return open.fits(open.required, open.needed(open.place.member, missing));
  };
  const bool apart = object.distinct && open.place.count < object.least;
  const auto unseen = [&](Language key) {
    if ((!apart && !object.asked) || open.at.seen == kNothing) return key;
    return languages_.all_of({key, languages_.except(open.at.seen)});
  };
  for (std::uint32_t i = 0; i < object.others.size() && fits(open.missing); ++i) {
    const ObjectShape::Member& other = object.others[i];
    if (!(*usable_)[other.value]) continue;
    const Language key = unseen(other.key);
    if (languages_.is_empty(key)) continue;
    if (apart) {
      add(key, frame(kCopied, 0, open.frame, i));
    } else {
      add_member(open, key, other.value, {.member = open.place.member, .found = open.place.found});
    }
  }
  if (open.missing == 0) return;
  for (std::uint32_t i = 0; i < object.asked->others.size(); ++i) {
    const AskedMembers::Other& other = object.asked->others[i];
    const auto which = static_cast<std::uint32_t>(object.others.size()) + i;
    if (!(*usable_)[other.value] || (other.as & ~open.missing) != 0 || !fits(open.missing & ~other.as))
      continue;
    add(unseen(other.key), frame(kCopied, 0, open.frame, which));
  }
}

void Matcher::enter_array(const Frame& at, std::uint32_t place_of_frame) {
  const ArrayShape& array = symbols_->arrays[symbols_->symbols[at.symbol].a];
  if (at.at == 0) {
    add(array.open, frame(at.symbol, 1, at.next));
    return;
  }
  if (array.counted) return enter_counted(array, at);
  if (at.at & kAtElement) {
    const Language element = symbols_->symbols[array.rest].a;
    add(languages_.all_of({element, languages_.except(at.seen)}), frame(kCopied, 0, place_of_frame));
    return;
  }
  const std::uint32_t count = at.at - 1;
  if (count >= array.least) add(array.close, at.next);
  if (array.most != kUnbounded && count >= array.most) return;
  const SymbolId item = count < array.first.size() ? array.first[count] : array.rest;
  if (item == kNoSymbol || !(*usable_)[item]) return;
  const auto matters = array.most != kUnbounded
                           ? array.most
                           : std::max({array.least, static_cast<std::uint32_t>(array.first.size()), 1u});
  const std::uint32_t at_behind = std::min(count + 1, matters) + 1;
  const Language before = count == 0 ? array.before_first : array.comma;
  if (array.distinct) {
    add(before, frame(at.symbol, at_behind | kAtElement, at.next, at.seen));
  } else {
    add(before, frame(item, 0, frame(at.symbol, at_behind, at.next)));
  }
}

void Matcher::enter_counted(const ArrayShape& array, const Frame& at) {
  const CountedElements& counted = *array.counted;
  const CountedPlace place = CountedPlace::of(at.at);
  if (place.count >= array.least && counted.is_enough(place.found)) add(array.close, at.next);
  if (place.count >= array.most) return;
  const auto first = static_cast<std::uint32_t>(counted.as.front().first.size());
  const std::uint32_t matters = array.most != kUnbounded ? array.most : std::max(array.least, first);
  const std::uint32_t count = std::min(place.count + 1, std::max(matters, 1u));
  const Language before = place.count == 0 ? array.before_first : array.comma;
  for (std::uint32_t set = 0; set < counted.as.size(); ++set) {
    const SymbolId item = counted.as[set].at(place.count);
    const auto found = counted.with(place.found, set);
    if (!found || item == kNoSymbol || !(*usable_)[item] || !array.can_end(count, *found, *usable_)) continue;
    add(before, frame(item, 0, frame(at.symbol, CountedPlace{count, *found}.pack(), at.next)));
  }
}

}  // namespace nibble
