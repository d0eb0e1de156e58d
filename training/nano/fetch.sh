#!/usr/bin/env bash
# Download training material from Debian packages: PDFs, and fonts for synthetic pages. Requires root for apt-file.
#   bash training/nano/fetch.sh WORK_FOLDER [EVERY]
# EVERY: download only one in EVERY packages (default 1: all).
# Packages of the development corpora are excluded: they are used for evaluation only.
set -euo pipefail
work=$1 every=${2:-1}
mkdir -p "$work"/{debs,fontdebs,pdfs,fonts}
apt-get update -q && apt-get install -y -q -o DPkg::Lock::Timeout=600 apt-file && apt-file update
measured='lilypond|debian-faq|installation-guide|debian-reference|developers-reference|packaging-tutorial|eyes17|msc-gen|drbd'

sizes() { xargs apt-cache show --no-all-versions 2>/dev/null | awk '/^Package:/{p=$2} /^Size:/{print p, $2}'; }

apt-file search -x '\.pdf(\.gz)?$' | cut -d: -f1 | sort -u | sizes | awk '$2 < 6000000 {print $1}' \
  | grep -vE "$measured|-dbg|^lib.*-java$" | awk -v n="$every" 'NR % n == 0' > "$work/wanted.txt"
printf 'texlive-publishers-doc\ntexlive-lang-english\n' >> "$work/wanted.txt"
(cd "$work/debs" && xargs -n 40 -P 3 apt-get download -q < ../wanted.txt || true)
for deb in "$work"/debs/*.deb; do
  package=$(basename "$deb" | cut -d_ -f1) number=0
  tree=$(mktemp -d)
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$tree" --wildcards '*.pdf' '*.pdf.gz' 2>/dev/null || true
  while read -r file; do
    number=$((number + 1))
    case $file in *.gz) gunzip -c "$file" ;; *) cat "$file" ;; esac > "$work/pdfs/$package-$number.pdf"
  done < <(find "$tree" -type f | sort)
  rm -rf "$tree"
done

other='icons|awesome|cns|arphic|nanum|cjk|ipa|takao|mplus|unfonts|emoji|symbol|han|deva|beng|taml|telu|knda|mlym|gujr|guru'
other="$other|orya|thai|tlwg|lao|khmer|tibet|arab|hosny|farsi|dzong|samyak|smc|lohit|gfs|hanazono|wqy|-web\$|dotgothic|mathjax|glyph"
{ apt-cache search -n '^fonts-' | cut -d' ' -f1 | grep -vE "$other"; echo lmodern; } | sizes \
  | awk -v n="$every" '$2 < 12000000 && ++i % n == 0 {print $1}' > "$work/wanted-fonts.txt"
(cd "$work/fontdebs" && xargs -n 40 -P 2 apt-get download -q < ../wanted-fonts.txt || true)
for deb in "$work"/fontdebs/*.deb; do
  package=$(basename "$deb" | cut -d_ -f1)
  tree=$(mktemp -d)
  dpkg-deb -x "$deb" "$tree"
  find "$tree" -type f \( -iname '*.ttf' -o -iname '*.otf' \) | while read -r file; do
    cp "$file" "$work/fonts/$package--$(basename "$file")"
  done
  rm -rf "$tree"
done
