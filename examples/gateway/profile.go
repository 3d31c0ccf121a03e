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

// checkProfile returns an error for an invalid profile, a missing one, or one with a
// target without backends. Later, an invalid file leaves the last valid profile active.
func checkProfile(ctx context.Context, path string, backends table) error {
	files, err := profileFiles(path)
	if err != nil {
		return fmt.Errorf(profileHint, err)
	}
	found, targets := false, []string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf(profileHint, err)
		}
		set, err := file.Parse(name, text)
		if err != nil {
			return fmt.Errorf("invalid profile:\n%w", err)
		}
		found = found || set.Profile(target) != nil
		targets = append(targets, set.Targets()...)
	}
	switch {
	case len(targets) == 0:
		return fmt.Errorf("%s must have a profile for %s", path, target)
	case !found:
		return fmt.Errorf("%s must have a profile for %s; it has profiles for %v", path, target, targets)
	}
	for p, err := range file.New(path).Watch(ctx, target) { // several files may have a profile for it
		if err != nil {
			return fmt.Errorf("invalid profile: %w", err)
		}
		return backends.check(path, p)
	}
	return context.Cause(ctx)
}

const profileHint = "profile: %w: run the gateway in the top folder of the repository, or set -profile"

// profileFiles returns the files that package file reads for a path.
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

// check returns an error if p sends requests, or copies of them, to a target without a
// backend.
func (t table) check(path string, p *profiles.Profile) error {
	var all []string
	for _, to := range p.Targets {
		if to.Weight > 0 {
			all = append(all, to.Authority)
		}
	}
	if len(all) == 0 {
		all = []string{target} // no split
	}
	for _, r := range p.Routes {
		for _, m := range r.Mirrors {
			all = append(all, m.Authority)
		}
	}
	missing := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(all))), func(name string) bool { return len(t[name]) > 0 })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s sends requests to %s, which has no backend (backends: %s):"+
		" set -backend %s=ip:port for each, or change the file",
		path, strings.Join(missing, " and "), strings.Join(t.names(), ", "), missing[0])
}
