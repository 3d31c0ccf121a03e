package top

import "slices"

// cursor is the selected position in a list whose items move. If the user has moved the cursor to
// an item, the cursor moves with this item. At the start, and after a move to the first item, it
// stays at the top of the list instead.
type cursor struct {
	key   string // key of the selected item; "" means the item at the index in the field at
	at    int    // index of the selected item
	first int    // first item on the screen
}

// place moves the cursor to the new position of the selected item, and scrolls so that this item
// is visible. keys holds the current items' keys. height is how many items fit on the screen.
func (c *cursor) place(keys []string, height int) {
	// The selected item may have moved, or may have been removed.
	if c.key != "" {
		if i := slices.Index(keys, c.key); i >= 0 {
			c.at = i
		} else {
			c.key = ""
		}
	}
	// The list may have become shorter.
	c.at = max(0, min(c.at, len(keys)-1))
	// Scroll as little as necessary, and not beyond the end.
	c.first = max(min(c.first, c.at), c.at-max(height, 1)+1)
	c.first = max(0, min(c.first, len(keys)-height))
}

// move moves the selection down by a number of items, or up if it is negative. After a move to
// the first item, the selection stays at the top even if another item becomes the first. keys are
// the items' keys.
func (c *cursor) move(rows int, keys []string) {
	if len(keys) == 0 {
		return
	}
	c.at = max(0, min(c.at+rows, len(keys)-1))
	// At the top, the cursor stays at the top instead of following an item.
	if c.key = keys[c.at]; c.at == 0 {
		c.key = ""
	}
}

// step returns how many items a key moves a cursor down, or up if negative. page is how many
// items fit on the screen. ok is false if the key does not move a cursor.
func step(key string, page int) (rows int, ok bool) {
	// far is further than any list is long. move limits it.
	const far = 1 << 30
	page = max(page, 1)
	switch key {
	case "up", "k":
		return -1, true
	case "down", "j":
		return 1, true
	case "pgup", "ctrl+b":
		return -page, true
	case "pgdown", "ctrl+f":
		return page, true
	case "home", "g":
		return -far, true
	case "end", "G":
		return far, true
	}
	return 0, false
}

// sideways returns how many columns a key scrolls to the right, or to the left if negative. ok is
// false if the key does not scroll.
func sideways(key string) (columns int, ok bool) {
	const scroll = 5
	switch key {
	case "a", "left":
		return -scroll, true
	case "d", "right":
		return scroll, true
	}
	return 0, false
}
