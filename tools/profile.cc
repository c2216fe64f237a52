// profile: what decode steps select, measured offline.
#include <array>

#include "tools/profile/commands.h"

namespace smartgen::tools {

int Profile(const Args& args) {
  struct Named {
    std::string_view name;
    int (*run)(const Args& args);
  };
  constexpr std::array<Named, 3> kNamed = {
      {{"show", profile::Show}, {"similarity", profile::Similarity}, {"miss", profile::Miss}}};
  for (const Named& named : kNamed) {
    if (!args.empty() && args[0] == named.name)
      return named.run(Args(args.begin() + 1, args.end()));
  }
  return profile::Make(args);
}

}  // namespace smartgen::tools
