// Package follow looks at files as they change. A [Poller] looks while somebody
// wants to know; a [Tree] is what it looks at: a file, or the files of a
// directory, each read again only if it may have changed, and its last good
// content kept when it goes bad.
package follow
