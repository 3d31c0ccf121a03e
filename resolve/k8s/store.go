package k8s

import (
	"maps"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// store is what a Reflector writes to: it boils each object down and lets it go.
// A list takes the place of all at once. It is for the Reflector's goroutine.
type store[T any] struct {
	read  func(obj any) (name string, item *T) // nil for what is not of interest
	items map[string]*T
	put   func(items map[string]*T) // gets the store's own map, to read before it returns
}

var _ cache.ReflectorStore = (*store[service])(nil)

func newStore[T any](read func(any) (string, *T), put func(map[string]*T)) *store[T] {
	return &store[T]{read: read, items: make(map[string]*T), put: put}
}

// Add also replaces: a watch that begins anew may say what is known.
func (s *store[T]) Add(obj any) error {
	name, item := s.read(obj)
	if item == nil {
		return s.Delete(obj) // it may have been of interest before
	}
	s.items[name] = item
	s.put(s.items)
	return nil
}

func (s *store[T]) Update(obj any) error { return s.Add(obj) }

func (s *store[T]) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	if _, known := s.items[name]; known {
		delete(s.items, name)
		s.put(s.items)
	}
	return nil
}

func (s *store[T]) Replace(list []any, _ string) error {
	clear(s.items)
	for _, obj := range list {
		if name, item := s.read(obj); item != nil {
			s.items[name] = item
		}
	}
	s.put(s.items)
	return nil
}

func (s *store[T]) Resync() error { return nil }

// sorted returns the items in the order of their names.
func sorted[T any](items map[string]*T) []*T {
	list := make([]*T, 0, len(items))
	for _, name := range slices.Sorted(maps.Keys(items)) {
		list = append(list, items[name])
	}
	return list
}
