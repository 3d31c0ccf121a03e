package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/file"
)

// checkProfile refuses what is wrong from the start: the file, or one of a
// directory, or that requests would go where there is nobody. Later the gateway
// goes on with the last profile that was good, but at the start there is none.
func checkProfile(ctx context.Context, path string, backends table) error {
	files, err := profileFiles(path)
	if err != nil {
		return fmt.Errorf(noProfile, err)
	}
	found, targets := false, []string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf(noProfile, err)
		}
		set, err := file.Parse(name, text)
		if err != nil {
			return fmt.Errorf("bad profile:\n%w", err)
		}
		found = found || set.Profile(target) != nil
		targets = append(targets, set.Targets()...)
	}
	switch {
	case len(targets) == 0:
		return fmt.Errorf("%s has no profile at all: it would not know where requests are to go", path)
	case !found:
		return fmt.Errorf("%s has no profile for %s, only for %v: it would not know where requests are to go", path, target, targets)
	}
	for p, err := range file.New(path).Watch(ctx, target) { // of several files for it one holds
		if err != nil {
			return fmt.Errorf("bad profile: %w", err)
		}
		return backends.check(path, p)
	}
	return context.Cause(ctx)
}

const noProfile = "no profile: %w: start it in the top folder of the repository, or say with -profile where the file is"

// profileFiles are those that package file reads of a path.
func profileFiles(path string) (files []string, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		known := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name()))
		if known && !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, err
}

// check returns an error for where p sends requests, or copies of them, and no
// backend is.
func (t table) check(path string, p *profiles.Profile) error {
	var all []string
	for _, to := range p.Targets {
		if to.Weight > 0 {
			all = append(all, to.Authority)
		}
	}
	if len(all) == 0 {
		all = []string{target} // it is not split
	}
	for _, r := range p.Routes {
		for _, m := range r.Mirrors {
			all = append(all, m.Authority)
		}
	}
	lacking := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(all))), func(name string) bool { return len(t[name]) > 0 })
	if len(lacking) == 0 {
		return nil
	}
	return fmt.Errorf("%s sends requests to %s, and there is no backend of that name, only %s:"+
		" give -backend %s=ip:port for each, or change the file",
		path, strings.Join(lacking, " and "), strings.Join(t.names(), ", "), lacking[0])
}
