package top

import "slices"

// cursor is the selected position in a list with items that move. If the user has moved the
// cursor to an item, the cursor moves with this item. At the start, and after a move to the
// first item, it stays at the top of the list instead.
type cursor struct {
	key   string // key of the selected item; "" means the item at the index in the field at
	at    int
	first int // first item on the screen
}

// place moves the cursor to the new position of the selected item, and scrolls so that this
// item is visible. The argument keys has the keys of the current items. height is the
// number of items that fit on the screen.
func (c *cursor) place(keys []string, height int) {
	if c.key != "" {
		if i := slices.Index(keys, c.key); i >= 0 {
			c.at = i
		} else {
			c.key = ""
		}
	}
	c.at = max(0, min(c.at, len(keys)-1))
	c.first = max(min(c.first, c.at), c.at-max(height, 1)+1)
	c.first = max(0, min(c.first, len(keys)-height))
}

// move moves the selection down by the given number of items. A negative number moves it up.
// After a move to the first item, the selection stays at the top of the list, even if another
// item becomes the first. keys has the keys of the items.
func (c *cursor) move(by int, keys []string) {
	if len(keys) == 0 {
		return
	}
	c.at = max(0, min(c.at+by, len(keys)-1))
	if c.key = keys[c.at]; c.at == 0 {
		c.key = ""
	}
}

// step returns the number of items by which the given key of the keyboard moves a cursor
// down. The number is negative for up. ok is false if the key does not move a cursor. The
// argument page is the number of items on the screen.
func step(key string, page int) (by int, ok bool) {
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

// sideways returns the number of terminal columns by which the given key of the keyboard
// scrolls to the right. The number is negative for left. ok is false if the key does not
// scroll.
func sideways(key string) (by int, ok bool) {
	const scroll = 5
	switch key {
	case "a", "left":
		return -scroll, true
	case "d", "right":
		return scroll, true
	}
	return 0, false
}
