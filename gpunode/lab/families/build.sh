#!/bin/sh
# Builds the packages of another distribution; runs in a container of that distribution's plain tree.
# /packages holds: format, specs/SOURCE/NAME.spec or specs/SOURCE/NAME/PKGBUILD, roots/… (files of each package), gpg (a home
# with the keys), signs (lines `SOURCE FINGERPRINT packages|metadata`), modules/SOURCE.yaml; and gets out/SOURCE.
set -eu
cd /packages
export GNUPGHOME=/packages/gpg

build_rpm() {
    rpmbuild -bb --quiet --target x86_64 --define '_topdir /packages/top' --define "_rpmdir /packages/out/$1" \
        --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define '_build_id_links none' \
        --define '__os_install_post %{nil}' --define 'debug_package %{nil}' --define '_dbpath /packages/top/db' \
        --define 'source_date_epoch_from_changelog 0' "$2" >"/packages/top/log.$$" 2>&1 || { cat "/packages/top/log.$$" >&2; exit 1; }
}

# shellcheck disable=SC2094 # no word of ./signs is written
rpms() {
    mkdir -p top
    for folder in specs/*/; do
        source=$(basename "$folder")
        mkdir -p "out/$source"
        for spec in "$folder"*.spec; do build_rpm "$source" "$spec"; done
    done
    while read -r source fingerprint signs; do
        [ "$signs" != packages ] || rpmsign --define "_gpg_name $fingerprint" --define '_gpg_path /packages/gpg' --define '__gpg /usr/bin/gpg' \
            --addsign "out/$source"/*.rpm >/dev/null
        createrepo_c --quiet "out/$source"
        [ ! -e "modules/$source.yaml" ] || modifyrepo_c --mdtype=modules "modules/$source.yaml" "out/$source/repodata" >/dev/null
        [ "$signs" != metadata ] || gpg --batch --quiet --yes --local-user "$fingerprint" --armor --detach-sign "out/$source/repodata/repomd.xml"
    done <signs
}

pacmen() {
    useradd builder
    chown -R builder: specs roots
    for folder in specs/*/; do
        source=$(basename "$folder")
        mkdir -p "out/$source"
        for package in "$folder"*/; do
            cd "$package"
            runuser -u builder -- makepkg --nodeps --nocheck >makepkg.log 2>&1 || { cat makepkg.log >&2 && exit 1; }
            cd /packages
            cp "$package"*.pkg.tar.* "out/$source/"
        done
    done
    while read -r source fingerprint _; do
        for file in "out/$source"/*.pkg.tar.*; do gpg --batch --quiet --local-user "$fingerprint" --detach-sign "$file"; done
        repo-add --quiet "out/$source/extra.db.tar.gz" "out/$source"/*.pkg.tar.*[!g] >/dev/null
    done <signs
}

case $(cat format) in rpm) rpms ;; pacman) pacmen ;; esac
gpgconf --kill gpg-agent
