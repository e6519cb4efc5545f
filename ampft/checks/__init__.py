"""What is examined beside a training: labels, simple methods, harm, groups that lose."""
