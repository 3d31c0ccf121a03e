package yamlfile

import "go.yaml.in/yaml/v3"

// maxAliased is how many nodes aliases may add to a document. Without a limit, a small file with
// nested aliases could expand to a huge document.
const maxAliased = 100_000

// Resolve returns a copy of the document v with aliases and merge keys replaced by what they
// refer to. A merge key "<<" adds the fields that its mapping does not set itself. Mistakes are
// an alias inside its own node, too many aliases, and a merge key whose value is not a mapping.
func (v Value) Resolve() Value {
	r := &aliases{File: v.File, parents: make(map[*yaml.Node]bool)}
	v.Node = r.resolve(v.Node, false) // not within an alias
	return v
}

// aliases is the state of [Value.Resolve].
type aliases struct {
	*File

	parents map[*yaml.Node]bool // anchored nodes around the one being copied; an alias to one would never end
	copies  int                 // how many nodes aliases have added
}

// failf adds a mistake at n, and returns an empty mapping to continue with.
func (r *aliases) failf(n *yaml.Node, format string, args ...any) *yaml.Node {
	position := Value{File: r.File, Node: &yaml.Node{Line: n.Line, Column: n.Column}}
	position.Failf(format, args...)
	return &yaml.Node{Kind: yaml.MappingNode, Line: n.Line, Column: n.Column}
}

// resolve returns a copy of n. aliased is true if an alias refers to n or to something around it.
func (r *aliases) resolve(n *yaml.Node, aliased bool) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		if r.parents[n.Alias] {
			return r.failf(n, "*%s is within &%[1]s itself", n.Value)
		}
		return r.resolve(n.Alias, true) // within an alias
	}
	if aliased {
		r.copies++
	}
	resolved := *n
	resolved.Content = nil
	if len(n.Content) > 0 {
		resolved.Content = make([]*yaml.Node, 0, len(n.Content))
	}
	resolved.Style &^= yaml.TaggedStyle
	if n.Anchor != "" {
		r.parents[n] = true
		defer delete(r.parents, n)
	}
	for _, child := range n.Content {
		switch {
		case r.copies < maxAliased:
			resolved.Content = append(resolved.Content, r.resolve(child, aliased))
		case r.copies == maxAliased:
			r.copies++ // report it once
			return r.failf(n, "the aliases make the document too large: write out the values")
		}
	}
	if n.Kind == yaml.MappingNode {
		r.merge(&resolved)
	}
	return &resolved
}

// merge expands YAML's merge keys ("<<: *base") in the mapping n: it adds the fields of the mapping
// that the key refers to, except those that n gives itself.
func (r *aliases) merge(n *yaml.Node) {
	var merged []*yaml.Node
	names := make(map[string]bool)
	fields := make([]*yaml.Node, 0, len(n.Content))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		item := n.Content[i+1]
		if key.ShortTag() != "!!merge" {
			names[key.Value] = true
			fields = append(fields, key, item)
			continue
		}
		if item.Kind == yaml.SequenceNode {
			merged = append(merged, item.Content...)
		} else {
			merged = append(merged, item)
		}
	}
	// The mapping's own fields take precedence, and then those of an earlier mapping in the list.
	for _, m := range merged {
		if m.Kind != yaml.MappingNode {
			r.failf(m, "want a mapping, or a list of mappings, as the value of <<")
		}
		for i := 0; m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
			if key := m.Content[i]; !names[key.Value] {
				names[key.Value] = true
				fields = append(fields, key, m.Content[i+1])
			}
		}
	}
	n.Content = fields
}
