#!/bin/bash
# Collects natural texts of many kinds from Debian 12 packages, for `smartgen profile`.
#
# Usage: tools/profile_texts.sh FOLDER
#
# Writes FOLDER/profile/ (to make a profile from) and FOLDER/held-out/ (to judge it by); no text is
# in both. Packages are downloaded by name with apt-get and unpacked beside the texts; nothing is
# installed, root is not needed. An apt that has no package lists yet wants `apt-get update` first.
set -euo pipefail

# set, name, package, path in it (.gz and dictzip files are unpacked)
TEXTS='
profile  licence-gpl3        base-files              usr/share/common-licenses/GPL-3
profile  licence-mpl2        base-files              usr/share/common-licenses/MPL-2.0
profile  constitution-debian doc-debian              usr/share/doc/debian/constitution.txt.gz
profile  manual-policy       debian-policy           usr/share/doc/debian-policy/policy.txt.gz
profile  manual-reference    debian-reference-en     usr/share/debian-reference/debian-reference.en.txt.gz
profile  essay-history       anarchism               usr/share/doc/anarchism/markdown/secH3.md.gz
profile  essay-answers       anarchism               usr/share/doc/anarchism/markdown/append43.md.gz
profile  dictionary-english  dict-gcide              usr/share/dictd/gcide.dict.dz
profile  sayings-people      fortunes                usr/share/games/fortunes/people
profile  sayings-science     fortunes                usr/share/games/fortunes/science
profile  poems-english       fortunes                usr/share/games/fortunes/songs-poems
profile  sayings-german      fortunes-de             usr/share/games/fortunes/de/sprueche.u8
profile  chat-german         fortunes-de             usr/share/games/fortunes/de/channel-debian.fortunes.u8
profile  proverbs-spanish    fortunes-es             usr/share/games/fortunes/es/refranes.fortunes
profile  page-french         manpages-fr             usr/share/man/fr/man8/mount.8.gz
profile  page-proc           manpages                usr/share/man/man5/proc.5.gz
profile  help-pattern        vim-runtime             usr/share/vim/vim90/doc/pattern.txt
profile  help-options        vim-runtime             usr/share/vim/vim90/doc/options.txt
profile  questions-perl      perl-doc                usr/share/perl/5.36.0/pod/perlfaq4.pod
profile  tutorial-perl       perl-doc                usr/share/perl/5.36.0/pod/perlpacktut.pod
profile  python-mailbox      libpython3.11-stdlib    usr/lib/python3.11/mailbox.py
profile  python-tarfile      libpython3.11-stdlib    usr/lib/python3.11/tarfile.py
profile  python-statistics   libpython3.11-stdlib    usr/lib/python3.11/statistics.py
profile  c-elf               libc6-dev               usr/include/elf.h
profile  c-bpf               linux-libc-dev          usr/include/linux/bpf.h
profile  shell-completion    bash-completion         usr/share/bash-completion/bash_completion
profile  json-languages      iso-codes               usr/share/iso-codes/json/iso_639-3.json
profile  changes-vim         vim-runtime             usr/share/doc/vim-runtime/changelog.Debian.gz
profile  web-policy          debian-policy           usr/share/doc/debian-policy/policy.html/ch-source.html
held-out licence-gfdl        base-files              usr/share/common-licenses/GFDL-1.3
held-out licence-lgpl2       base-files              usr/share/common-licenses/LGPL-2.1
held-out constitution-us     miscfiles               usr/share/state/us-constitution.gz
held-out manual-developers   developers-reference    usr/share/developers-reference/developers-reference.txt.gz
held-out verses-dhammapada   display-dhammapada      usr/share/display-dhammapada/dhammapada-english-transl.txt
held-out sayings-definitions fortunes                usr/share/games/fortunes/definitions
held-out sayings-italian     fortunes-it             usr/share/games/fortunes/it/italia
held-out proverbs-german     fortunes-de             usr/share/games/fortunes/de/sprichworte.u8
held-out page-ptrace         manpages-dev            usr/share/man/man2/ptrace.2.gz
held-out help-script         vim-runtime             usr/share/vim/vim90/doc/usr_41.txt
held-out guide-threads-perl  perl-doc                usr/share/perl/5.36.0/pod/perlthrtut.pod
held-out manual-git          git-doc                 usr/share/doc/git/html/user-manual.txt
held-out python-difflib      libpython3.11-stdlib    usr/lib/python3.11/difflib.py
held-out python-imaplib      libpython3.11-stdlib    usr/lib/python3.11/imaplib.py
held-out c-zlib              zlib1g-dev              usr/include/zlib.h
held-out json-regions        iso-codes               usr/share/iso-codes/json/iso_3166-2.json
'

help() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  help
  exit 0
fi
if [ $# -ne 1 ]; then
  help >&2
  exit 2
fi
mkdir -p "$1/packages" "$1/profile" "$1/held-out"
cd "$1"

for package in $(awk 'NF {print $3}' <<<"$TEXTS" | sort -u); do
  [ -d "packages/$package" ] && continue
  rm -rf packages/part && mkdir packages/part
  (cd packages/part && apt-get -qq -o APT::Sandbox::User=root download "$package" && dpkg-deb -x ./*.deb . && rm ./*.deb)
  mv packages/part "packages/$package"
done

missing=0
while read -r set name package path; do
  [ -n "$set" ] || continue
  file="packages/$package/$path"
  if [ ! -e "$file" ]; then
    echo "$package has no $path" >&2
    missing=1
    continue
  fi
  # The first 400 kB: more than the longest prompt needs.
  case "$path" in
    *.gz | *.dz) zcat -- <"$file" | head -c 400000 >"$set/$name" || true ;;
    *) head -c 400000 "$file" >"$set/$name" ;;
  esac
  [ -s "$set/$name" ] || { echo "$package: $path is empty" >&2; missing=1; }
done <<<"$TEXTS"
echo "$(ls profile | wc -l) texts in $1/profile, $(ls held-out | wc -l) in $1/held-out" >&2
exit "$missing"
